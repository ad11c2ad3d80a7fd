"""FrozenLake: cross the ice to the goal without falling into a hole. Follows RAGEN's
`ragen/env/frozen_lake`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spa import seeds
from spa.envs import coords
from spa.envs.base import Action, StateText, action_index
from spa.envs.boards import board_lines
from spa.envs.frozen_lake_maps import TURNS, Lake, generate_lake, moves
from spa.envs.grids import GridGame
from spa.envs.options import Noise, require_bool, require_int, require_rate, reset_seeds
from spa.envs.solvers.frozen_lake import best_turn, shortest_path, values
from spa.envs.spaces import text_space
from spa.errors import ConfigError

NAME = "frozen_lake"
# Same ids as in the original code, because the option `grid_lookup` refers to them.
SYMBOLS = {0: "P", 1: "_", 2: "O", 3: "G", 4: "X", 5: "√"}
MEANINGS = {0: "player", 1: "empty", 2: "hole", 3: "goal", 4: "player in hole", 5: "player on goal"}
ACTIONS = {1: "Left", 2: "Down", 3: "Right", 4: "Up"}
SPRITES = {
    0: ("ice", "player"),
    1: ("ice",),
    2: ("ice", "hole"),
    3: ("ice", "flag"),
    4: ("ice", "hole", "swimmer"),
    5: ("ice", "flag", "player"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sentence:
    """A parsed coordinate sentence. `things` is the text before the player's cell. Cells are (row,
    column)."""

    things: str
    holes: frozenset[tuple[int, int]]
    goal: tuple[int, int]
    player: tuple[int, int]


class FrozenLake(GridGame):
    """A square lake with holes, a player and a goal. Reward 1 on reaching the goal, else 0.

    On slippery ice, a move goes in the intended direction with probability `success_rate`, and
    otherwise to one of the two sides with equal probability.
    """

    changes = ("_noise",)

    state_key_format = ("cell", "cells as two digits")

    def __init__(
        self,
        *,
        size: int = 4,
        p: float = 0.8,
        is_slippery: bool = True,
        # The intended direction and its two sides have probability 1/3 each, as in Gymnasium.
        success_rate: float = 1 / 3,
        max_steps: int = 100,
        grid_lookup: Mapping[int, str] | None = None,
        grid_vocab: Mapping[str, str] | None = None,
        action_lookup: Mapping[int, str] | None = None,
        render_mode: str = "text",
        state_text: StateText | None = None,
    ) -> None:
        """`size` is the number of rows and columns, `p` the probability that a cell is frozen, and
        `success_rate` the probability of the intended move on slippery ice. `max_steps` truncates
        episodes. `grid_lookup`, `grid_vocab` and `action_lookup` replace symbols, their meanings
        and labels."""
        self.size = require_int(NAME, "size", size, 2, 64)
        self.p = require_rate(NAME, "p", p)
        self.is_slippery = require_bool(NAME, "is_slippery", is_slippery)
        self.success_rate = require_rate(NAME, "success_rate", success_rate)
        self.max_steps = require_int(NAME, "max_steps", max_steps, 1, 1_000_000)
        super().__init__(
            NAME,
            SYMBOLS,
            MEANINGS,
            ACTIONS,
            grid_lookup=grid_lookup,
            grid_vocab=grid_vocab,
            action_lookup=action_lookup,
            render_mode=render_mode,
            state_text=state_text,
        )
        self._tables = [moves(self.size, direction) for direction in TURNS]
        # For each label, the index of its direction in TURNS: `action_lookup` may have permuted the
        # labels.
        self._turns = [TURNS.index(direction) for direction in self._means]
        self._names = [f"({row},{col})" for row in range(self.size) for col in range(self.size)]
        # Upper bound on the length of a state text: the grid, the name of every cell, and the
        # words.
        longest = self.size * (self.size + 1) + 16 * self.size**2 + 200
        self.observation_space = text_space(longest)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the puzzle of `seed`, or the one in `options["board"]`, which has the form of
        `puzzle_text`."""
        puzzle_seed, noise_seed = reset_seeds(self, seed, options)
        board = (options or {}).get("board")
        if board is None:
            self.lake = generate_lake(
                seeds.stream(puzzle_seed, "frozen_lake/puzzle"), self.size, self.p
            )
        else:
            self.lake = self._parse(board)
        self.player = self.lake.start
        self.steps = 0
        self._ends = self.lake.holes | {self.lake.goal}
        # Text parts that are the same in all states of a lake, cached when the first state text is
        # rendered.
        self._grid_chars = ""
        self._things = ""
        # `_slip` creates the stream when a move first needs it, since many lakes never need one.
        self._noise_seed, self._noise = (
            noise_seed,
            # The option `sample` plays the prompt's example response without slips (see
            # `spa.prompts.render`).
            (lambda: 0.0) if (options or {}).get("sample") else None,
        )
        return self.state_text(self.default_state_text), {}

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make one move. An unknown action is invalid and changes nothing."""
        self.steps += 1
        before = after = self.player
        # After the end, an action neither moves the player nor earns a reward.
        over = before in self._ends
        index = (
            # Fast path: actions are usually numbers, which do not need the slower `action_index`.
            action - 1
            if type(action) is int and 0 < action <= 4
            else action_index(action, self._labels)
        )
        if index is not None and not over:
            turn = self._turns[index]
            after = self.player = self._tables[
                # TURNS is in circular order, so a slip is one index up or down.
                (turn + self._slip()) % 4 if self.is_slippery else turn
            ][before]
        terminated = after in self._ends
        success = terminated and after == self.lake.goal
        info = {
            "action_is_valid": index is not None,
            "action_is_effective": after != before,
            "success": success,
        }
        truncated = not terminated and self.steps >= self.max_steps
        reward = 1.0 if success and not over else 0.0
        return self.state_text(self.default_state_text), reward, terminated, truncated, info

    def _slip(self) -> int:
        """Sample the slip of a move on slippery ice, as an offset in TURNS: -1, 0 or 1."""
        if self._noise is None:
            self._noise = Noise(seeds.stream(self._noise_seed, "frozen_lake/noise"), 16)
        number = self._noise()
        if number < self.success_rate:
            return 0
        return -1 if number < (1 + self.success_rate) / 2 else 1

    def renew_noise(self, noise_seed: int) -> None:
        """Sample slips from the stream of `noise_seed` from now on."""
        self._noise_seed = noise_seed
        self._noise = None

    def _cell(self, cell: int) -> int:
        # The result is an id of SYMBOLS. There are separate ids for the player on the goal and in a
        # hole.
        if cell == self.player:
            return 4 if cell in self.lake.holes else 5 if cell == self.lake.goal else 0
        return 2 if cell in self.lake.holes else 3 if cell == self.lake.goal else 1

    def _grid(self) -> str:
        # Only the player moves, so the rest of the grid is rendered once per lake.
        grid = self._grid_chars or self._render_grid()
        player = self.player
        # Each row above the player adds one line break.
        place = player + player // self.size
        symbol = self._symbols[self._cell(player) if player in self._ends else 0]
        return f"{grid[:place]}{symbol}{grid[place + 1 :]}"

    def _render_grid(self) -> str:
        lake = self.lake
        size = self.size
        symbols = self._symbols
        flat = [symbols[1]] * (size * size)
        flat[lake.goal] = symbols[3]
        for hole in lake.holes:
            flat[hole] = symbols[2]
        self._grid_chars = "\n".join(
            "".join(flat[row : row + size]) for row in range(0, size * size, size)
        )
        return self._grid_chars

    def _sentence(self) -> str:
        player = self.player
        where = (
            "."
            if player not in self._ends
            else " on the goal."
            if player == self.lake.goal
            else " in a hole."
        )
        return f"{self._things or self._describe()}{self._names[player]}{where}"

    def _describe(self) -> str:
        lake = self.lake
        size = self.size
        symbols = self._symbols
        holes = coords.phrase(
            "hole", "holes", symbols[2], [divmod(hole, size) for hole in lake.holes]
        )
        self._things = f"{holes}; goal ({symbols[3]}) is at {self._names[lake.goal]}; player ({symbols[0]}) is at "
        return self._things

    def _parse(self, board: str) -> Lake:
        """Parse the lake that `board` shows in the standard symbols. Raises ConfigError if it is
        not a lake of this size."""
        rows = board_lines(board)
        flat = "".join(rows)
        fits = (
            len(rows) == self.size
            and all(len(row) == self.size for row in rows)
            and set(flat) <= set("P_OG")
        )
        if not fits or flat.count("P") != 1 or flat.count("G") != 1:
            raise ConfigError(
                f"{NAME}: the board must have {self.size}x{self.size} cells: one P, one G, "
                f"and otherwise O and _; got {board!r}"
            )
        holes = frozenset(cell for cell, symbol in enumerate(flat) if symbol == "O")
        return Lake(self.size, flat.index("P"), flat.index("G"), holes)

    def puzzle_text(self) -> str:
        """Return the initial board in the standard symbols, even if this instance uses other
        symbols."""
        lake = self.lake
        size = self.size
        flat = ["O" if cell in lake.holes else "_" for cell in range(size * size)]
        flat[lake.start] = "P"
        flat[lake.goal] = "G"
        return "\n".join("".join(flat[row : row + size]) for row in range(0, size * size, size))

    def _rate(self) -> float:
        return self.success_rate if self.is_slippery else 1.0

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """Return the first `limit` moves of a shortest path. On slippery ice, return only the next
        move: the best one with `limit` actions left."""
        if self.is_slippery:
            turn = best_turn(self.lake, self._rate(), self.player, limit)
            return () if turn is None else (self._labels[self._turns.index(turn)],)
        return self._way(limit)

    def example_actions(self) -> tuple[str, ...]:
        """Return the first three moves of a shortest path, ignoring slips."""
        return self._way(3)

    def _way(self, limit: int) -> tuple[str, ...]:
        way = []
        cell = self.player
        while len(way) < limit:
            # Set the number of actions left to the length of a shortest path. Then only moves along
            # such a path have a value above 0.
            turn = best_turn(self.lake, 1.0, cell, shortest_path(self.lake, cell) or 0)
            if turn is None:
                break
            way.append(self._labels[self._turns.index(turn)])
            cell = self._tables[turn][cell]
        return tuple(way)

    def optimal_steps(self) -> int | None:
        """Return the length of a shortest path to the goal, ignoring slips; None in a hole."""
        return shortest_path(self.lake, self.player)

    def best_success(self, limit: int) -> float:
        """Compute the probability that the best policy reaches the goal within `limit` actions, by
        value iteration. `max_steps` may end the episode earlier."""
        limit = max(0, self.within_steps(limit))
        return values(self.lake, self._rate(), limit)[limit][self.player]

    def greedy_action(self, rng: Any) -> str | None:
        """Return a random move that reduces the Manhattan distance to the goal, ignoring holes and
        slips. Returns None at the goal."""
        nearer = [
            label
            for label, turn in zip(self._labels, self._turns, strict=True)
            if self._to_goal(self._tables[turn][self.player]) < self._to_goal(self.player)
        ]
        return nearer[int(rng.integers(len(nearer)))] if nearer else None

    def goal_distance(self) -> float:
        """Return the Manhattan distance between the player and the goal."""
        return self._to_goal(self.player)

    def _to_goal(self, cell: int) -> int:
        row, col = divmod(cell, self.size)
        goal_row, goal_col = divmod(self.lake.goal, self.size)
        return abs(row - goal_row) + abs(col - goal_col)

    def state_value(self, text: str) -> float:
        """Return 1 if the text shows the player on the goal, -1 if in a hole, else 0."""
        # Search for symbols only in the grid, because the sentence may contain the same characters.
        grid = "".join(text.split("\n")[: self.size]) if "\n" in text else ""
        if "on the goal" in text or self._symbols[5] in grid:
            return 1.0
        return -1.0 if "in a hole" in text or self._symbols[4] in grid else 0.0

    def state_key(self) -> str | None:
        """Return the player's row and column as two digits; None on slippery ice and on boards of
        more than ten rows."""
        row, col = divmod(self.player, self.size)
        return None if self.is_slippery or self.size > 10 else f"{row}{col}"

    def state_outcome(self) -> str:
        """Return "goal", "hole", or "" on ice."""
        return (
            "goal"
            if self.player == self.lake.goal
            else "hole"
            if self.player in self.lake.holes
            else ""
        )

    def key_of_text(self, text: str) -> str | None:
        """Return the player's cell in a coordinate sentence as two digits; None for other texts."""
        read = self._read(text)
        return None if read is None or self.size > 10 else f"{read.player[0]}{read.player[1]}"

    def text_of_key(self, text: str, key: str) -> str | None:
        """Return the coordinate sentence `text` with the player moved to the cell `key`.

        Returns None if `text` is not a coordinate sentence, or if the board has no such cell.
        """
        read = self._read(text)
        if read is None or len(key) != 2 or not (key.isascii() and key.isdecimal()):
            return None
        cell = (int(key[0]), int(key[1]))
        if max(cell) >= self.size:
            return None
        where = (
            " on the goal." if cell == read.goal else " in a hole." if cell in read.holes else "."
        )
        return f"{read.things}{coords.cell_list([cell])}{where}"

    def outcome_of_text(self, text: str) -> str:
        """Return the outcome in a coordinate sentence: "goal", "hole" or "". Other texts have the
        outcome ""."""
        read = self._read(text)
        if read is None:
            return ""
        return "goal" if read.player == read.goal else "hole" if read.player in read.holes else ""

    def _read(self, text: str) -> "_Sentence | None":
        """Parse a coordinate sentence; None if the text is not one."""
        # Matches `holes (O) are at (0,1) (1,0); goal (G) is at (2,0); player (P) is at (3,2).` At
        # the end of a game, `on the goal` or `in a hole` follows the player's cell.
        goal, player = (re.escape(f" ({self._symbols[kind]}) is at ") for kind in (3, 0))
        cell = r"\((\d),(\d)\)"
        match = re.fullmatch(
            rf"((.*); goal{goal}{cell}; player{player}){cell}( on the goal| in a hole)?\.", text
        )
        if match is None:
            return None
        # The groups are the text before the player's cell, the part of it before the goal (the
        # holes), and row and column of the goal and of the player.
        things, holes, *digits = match.groups()
        numbers = [int(digit) for digit in digits[:4]]
        return _Sentence(
            things=things,
            holes=frozenset((int(row), int(col)) for row, col in re.findall(cell, holes)),
            goal=(numbers[0], numbers[1]),
            player=(numbers[2], numbers[3]),
        )

    def _sprites(self) -> list[list[tuple[str, ...]]]:
        size = self.size
        return [
            [SPRITES[self._cell(row * size + col)] for col in range(size)] for row in range(size)
        ]

    def instruction(self, mode: StateText) -> str:
        """Return the rules and, if coordinates are shown, an explanation of them."""
        text = (
            "You are crossing a frozen lake. Walk over the ice to the goal and do not step into a hole: a hole ends "
            "the game. Each action moves you by one cell; a move off the lake leaves you where you are."
        )
        if self.is_slippery:
            text += (
                " The ice is slippery: a move goes where you want with probability "
                f"{self.success_rate:.2g}, otherwise to one of the two sides of that direction."
            )
        if mode != "grid":
            text += " " + coords.counting(self.size, self.size)
        if self.render_mode == "rgb_array":
            text += (
                " In the picture light cells are ice, a dark one is a hole, the flag is the goal, "
                "and the person is you."
            )
        return text

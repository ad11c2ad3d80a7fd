"""HiddenDynamicsLake: a lake whose dynamics must be learned, because prompts do not reveal them."""

import re
from collections import deque
from functools import lru_cache
from typing import Any

from spa import seeds
from spa.envs.base import Action, StateText, action_index
from spa.envs.frozen_lake import SYMBOLS, FrozenLake
from spa.envs.frozen_lake_maps import Lake
from spa.envs.options import require_int, require_rate, reset_seeds, shuffled, uniforms
from spa.errors import ConfigError

NAME = "hidden_dynamics_lake"
LETTERS = "abcde"
MOST_LAKES = 10_000
"""Random lakes that are tried for a puzzle."""
HOLE, GOAL, IN_HOLE, ON_GOAL = (SYMBOLS[kind] for kind in (2, 3, 4, 5))
ENDS = {GOAL: " on the goal", HOLE: " in a hole"}
"""Maps the symbol of the player's final cell to the words that end the coordinate sentence."""
_TEXT = re.compile(
    rf"(?P<before>cells (?P<cells>(?:\d\d[{LETTERS}{HOLE}{GOAL}]| )+); goal \d\d; player )"
    rf"(?P<player>\d\d)(?P<end>{ENDS[GOAL]}|{ENDS[HOLE]})?"
)


@lru_cache
def world_of(seed: int) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
    """Return the effects of the four actions and of the five letters in the world with this seed.

    The first tuple has, for each action name (left, down, right, up), the direction in which it
    moves the player. The second has, for each letter, the direction of its push, or None for the
    letter that does not push. A direction is an index into the action names. No action moves in the
    direction of its name.
    """
    draw = uniforms(seeds.stream(seed, f"{NAME}/world"))
    effects = tuple(range(4))
    while any(turn == index for index, turn in enumerate(effects)):
        effects = tuple(shuffled(range(4), draw))
    return effects, tuple(shuffled((*range(4), None), draw))


class HiddenDynamicsLake(FrozenLake):
    """A lake without slips whose prompts do not reveal the effects of actions and letters, so that
    a model must learn them.

    The four action names have permuted effects. Every cell of ice shows a letter from a to e. Four
    of the letters push an arriving player by one cell, each in its own direction, and the fifth
    does nothing. A push never triggers another push and does not cross the border. A move that the
    border stops triggers no push. A hole or the goal ends the episode, before or after a push.

    All puzzles of a `world` share the effects of actions and letters. Letters, holes, start and
    goal differ between puzzles.
    """

    metadata = {"render_modes": ["text", "text_with_coordinates"]}  # noqa: RUF012 (Gymnasium's own form)

    def __init__(
        self,
        *,
        size: int = 4,
        p: float = 0.8,
        world: int = 0,
        moves: int | None = None,
        min_moves: int = 1,
        max_steps: int = 100,
        render_mode: str = "text",
        state_text: StateText | None = None,
    ) -> None:
        """Create a lake of `size` rows and columns.

        `p` is the probability that a cell is frozen, and `world` the seed of the dynamics. Every
        puzzle has a shortest solution of `min_moves` to `moves` actions. The default of `moves` is
        6 if `size` is 4, else 10.
        """
        size = require_int(NAME, "size", size, 2, 10)
        default = 6 if size == 4 else 10
        self.moves = default if moves is None else require_int(NAME, "moves", moves, 1, 1_000_000)
        self.min_moves = require_int(NAME, "min_moves", min_moves, 1, self.moves)
        super().__init__(
            size=size,
            p=require_rate(NAME, "p", p),
            is_slippery=False,
            max_steps=require_int(NAME, "max_steps", max_steps, 1, 1_000_000),
            render_mode=render_mode,
            state_text=state_text,
        )
        self.world = require_int(NAME, "world", world, 0, 2**31)
        self._effects, self._pushes = world_of(self.world)

    def legend(self) -> dict[str, str]:
        """Map each symbol to its meaning."""
        return {
            **{letter: f"ice with the letter {letter}" for letter in LETTERS},
            "A to E": "player on such ice",
            HOLE: "hole",
            GOAL: "goal",
            IN_HOLE: "player in hole",
            ON_GOAL: "player on goal",
        }

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the puzzle of `seed`, or the board in `options["board"]`, in the format of
        `puzzle_text`."""
        puzzle_seed, _ = reset_seeds(self, seed, options)
        board = (options or {}).get("board")
        if board is None:
            self._sample(puzzle_seed)
        else:
            self._begin(*self._parse_board(board))
        if (options or {}).get("sample"):
            # The caller wants a state for the sample response in the prompt. A real sample would
            # reveal the effects of actions and letters. So no action moves the player here, and
            # `spa.prompts.render` omits the sample response.
            self._leads = [tuple(range(self.size**2))] * 4
        return self.state_text(self.default_state_text), {}

    def _sample(self, puzzle_seed: int) -> None:
        """Begin a random puzzle whose shortest path has `min_moves` to `moves` actions."""
        draw = uniforms(seeds.stream(puzzle_seed, f"{NAME}/puzzle"))
        cells = self.size**2
        for _ in range(MOST_LAKES):
            holes = frozenset([cell for cell in range(cells) if draw() >= self.p])
            start = int(draw() * cells)
            goal = int(draw() * cells)
            letters = "".join(LETTERS[int(draw() * len(LETTERS))] for _ in range(cells))
            if start == goal:
                continue
            self._begin(Lake(self.size, start, goal, holes - {start, goal}), letters)
            steps = self.optimal_steps()
            if steps is not None and self.min_moves <= steps <= self.moves:
                return
        raise ConfigError(
            f"{NAME}: none of {MOST_LAKES} lakes had a shortest solution of {self.min_moves} to {self.moves} actions; "
            "lower 'min_moves', or raise 'moves' or 'size'"
        )

    def _begin(self, lake: Lake, letters: str) -> None:
        self.lake = lake
        self.letters = letters
        self.player = lake.start
        self.steps = 0
        self._ends = lake.holes | {lake.goal}
        self._noise = None
        # One table per action, which maps the player's cell to the cell after the action.
        self._leads = [
            tuple(self._lead(turn, cell) for cell in range(self.size**2)) for turn in self._effects
        ]

    def _lead(self, turn: int, cell: int) -> int:
        landed = self._tables[turn][cell]
        push = self._push(cell, landed)
        return landed if push is None else self._tables[push][landed]

    def _push(self, cell: int, landed: int) -> int | None:
        """The direction in which the letter at `landed` pushes a player who comes from `cell`. None
        if the player is not pushed."""
        # Only a player who arrives on ice is pushed. The border may have stopped the move, and a
        # hole or the goal ends the episode.
        if landed == cell or landed in self._ends:
            return None
        return self._pushes[LETTERS.index(self.letters[landed])]

    def way(self, key: str, action: str) -> str:
        """The cell from which a letter pushes the player, followed by that letter, such as "12b".
        Empty if the action causes no push.

        `key` is the player's cell before the action. Written searches include the result, because a
        model looks a letter up by the key of its cell.
        """
        index = action_index(self.to_action(action), self._labels)
        row, col = divmod(int(key), 10)
        cell = row * self.size + col
        if index is None or cell in self._ends:
            return ""
        landed = self._tables[self._effects[index]][cell]
        if self._push(cell, landed) is None:
            return ""
        return f"{self._key(landed)}{self.letters[landed]}"

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make one move. An unknown action is invalid and changes nothing."""
        self.steps += 1
        before = self.player
        # After the end, an action neither moves the player nor earns a reward.
        over = before in self._ends
        index = action_index(action, self._labels)
        if index is not None and not over:
            self.player = self._leads[index][before]
        terminated = self.player in self._ends
        success = self.player == self.lake.goal
        info = {
            "action_is_valid": index is not None,
            "action_is_effective": self.player != before,
            "success": success,
        }
        truncated = not terminated and self.steps >= self.max_steps
        reward = 1.0 if success and not over else 0.0
        return self.state_text(self.default_state_text), reward, terminated, truncated, info

    def _content(self, cell: int) -> str:
        lake = self.lake
        return HOLE if cell in lake.holes else GOAL if cell == lake.goal else self.letters[cell]

    def _drawn(self, player: int) -> str:
        """Render the grid with the player in the cell `player`. On ice, a capital letter marks the
        player."""
        contents = [self._content(cell) for cell in range(self.size**2)]
        shown = {HOLE: IN_HOLE, GOAL: ON_GOAL}
        contents[player] = shown.get(contents[player], contents[player].upper())
        size = self.size
        return "\n".join(
            " ".join(contents[row : row + size]) for row in range(0, size * size, size)
        )

    def _grid(self) -> str:
        return self._drawn(self.player)

    def _sentence(self) -> str:
        size = self.size
        # Each cell's key is directly followed by its content, as in `12b`, because a model looks up
        # contents by key.
        rows = (
            "".join(f"{row}{col}{self._content(row * size + col)}" for col in range(size))
            for row in range(size)
        )
        end = ENDS.get(self._content(self.player), "")
        return (
            f"cells {' '.join(rows)}; goal {self._key(self.lake.goal)}; "
            f"player {self._key(self.player)}{end}"
        )

    def _key(self, cell: int) -> str:
        row, col = divmod(cell, self.size)
        return f"{row}{col}"

    def puzzle_text(self) -> str:
        """The grid at the start of the episode."""
        return self._drawn(self.lake.start)

    def _parse_board(self, board: str) -> tuple[Lake, str]:
        """Parse a grid into the lake and its letters. Raises ConfigError if it is not a board of
        this size."""
        rows = [row.split(" ") for row in board.split("\n")]
        flat = [symbol for row in rows for symbol in row]
        starts = [cell for cell, symbol in enumerate(flat) if symbol in [*LETTERS.upper()]]
        fits = len(rows) == self.size and all(len(row) == self.size for row in rows)
        known = {*LETTERS, *LETTERS.upper(), HOLE, GOAL}
        if not fits or not known.issuperset(flat) or len(starts) != 1 or flat.count(GOAL) != 1:
            raise ConfigError(
                f"{NAME}: the board must have {self.size} rows of {self.size} symbols, separated by "
                f"blanks. Use one capital letter from A to E (the player), one {GOAL}, and otherwise "
                f"{HOLE} and letters from a to e; got {board!r}"
            )
        holes = frozenset(cell for cell, symbol in enumerate(flat) if symbol == HOLE)
        letters = "".join(
            # Holes and the goal end the episode before their letter could push, so any letter will
            # do.
            symbol.lower() if symbol.lower() in LETTERS else LETTERS[0]
            for symbol in flat
        )
        return Lake(self.size, starts[0], flat.index(GOAL), holes), letters

    def _path(self) -> tuple[str, ...] | None:
        """A shortest path to the goal; None if there is none."""
        paths: dict[int, tuple[str, ...]] = {self.player: ()}
        queue = deque([self.player])
        while queue:
            cell = queue.popleft()
            if cell == self.lake.goal:
                return paths[cell]
            if cell in self.lake.holes:
                continue
            for label, leads in zip(self._labels, self._leads, strict=True):
                if leads[cell] not in paths:
                    paths[leads[cell]] = (*paths[cell], label)
                    queue.append(leads[cell])
        return None

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """The first `limit` moves of a shortest path; empty if the goal cannot be reached."""
        return (self._path() or ())[:limit]

    def example_actions(self) -> tuple[str, ...]:
        """The first three action names, regardless of the state, so that they reveal nothing about
        effects."""
        return self._labels[:3]

    def optimal_steps(self) -> int | None:
        """The length of a shortest path to the goal; None if the goal is out of reach."""
        path = self._path()
        return None if path is None else len(path)

    def best_success(self, limit: int) -> float:
        """1 if the goal can be reached within `limit` actions and before `max_steps` ends the
        episode, else 0."""
        steps = self.optimal_steps()
        return float(steps is not None and steps <= self.within_steps(limit))

    def key_of_text(self, text: str) -> str | None:
        """The player's cell in a coordinate sentence; None for other texts."""
        read = _TEXT.fullmatch(text)
        return None if read is None else read["player"]

    def text_of_key(self, text: str, key: str) -> str | None:
        """The coordinate sentence `text` with the player in the cell `key`; None if `text` is not
        such a sentence or has no such cell."""
        read = _TEXT.fullmatch(text)
        content = None if read is None else dict(re.findall(r"(\d\d)(\D)", read["cells"])).get(key)
        if read is None or content is None:
            return None
        return f"{read['before']}{key}{ENDS.get(content, '')}"

    def outcome_of_text(self, text: str) -> str:
        """The outcome in a coordinate sentence: "goal", "hole" or an empty string."""
        read = _TEXT.fullmatch(text)
        return "" if read is None else {ENDS[GOAL]: "goal", ENDS[HOLE]: "hole"}.get(read["end"], "")

    def instruction(self, mode: StateText) -> str:
        """The rules, which do not reveal the effects of actions and letters. If coordinates are
        shown, the text also explains how cells are written."""
        text = (
            "You are crossing a frozen lake. Move over the ice to the goal and do not come into a hole: a hole ends "
            "the game. Each action moves you by one cell in a direction that its name does not tell, and a move off "
            "the lake leaves you where you are. Every cell of ice has a letter. When you arrive on it, the letter may "
            "push you by one cell in a direction of its own. Actions and letters always do the same."
        )
        if mode != "grid":
            text += (
                " A cell is written as its row, its column and what is there: 12b is row 1, column 2, the letter b; "
                f"{HOLE} is a hole, {GOAL} the goal. Rows count from the top and columns from the left, from 0."
            )
        return text

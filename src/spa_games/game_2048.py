"""2048: slide numbered tiles; equal ones merge."""

import math
from typing import Any

from spa.envs import coords
from spa.envs.base import Action, StateText, TextEnv, action_index, label_space
from spa.envs.options import Noise, require_choice, require_int, require_rate, reset_seeds
from spa.envs.spaces import text_space
from spa.errors import ConfigError
from spa.seeds import stream

NAME = "game_2048"
ACTIONS = ("Up", "Right", "Down", "Left")

Row = tuple[int, ...]
Board = tuple[Row, ...]  # rows of tile values; 0 is an empty cell


def slide_left(row: Row) -> tuple[Row, int]:
    """Slide a row's tiles to the left. Return the new row and the sum of the merged tiles' values.

    Each tile merges at most once, and the leftmost pair first: (2, 2, 2, 0) becomes (4, 2, 0, 0)
    with the sum 4.
    """
    tiles = [tile for tile in row if tile]
    out: list[int] = []
    earned = place = 0
    while place < len(tiles):
        if place + 1 < len(tiles) and tiles[place] == tiles[place + 1]:
            out.append(2 * tiles[place])
            earned += out[-1]
            place += 2
        else:
            out.append(tiles[place])
            place += 1
    return tuple(out) + (0,) * (len(row) - len(out)), earned


def slide(board: Board, direction: str) -> tuple[Board, int]:
    """Slide all tiles in a direction of `ACTIONS`. Return the new board and the sum of the merged
    tiles' values; no random tile is added."""
    # Columns are the rows of the transposed board; Right and Down slide reversed lines to the left.
    upright = direction in ("Up", "Down")
    lines = tuple(zip(*board, strict=True)) if upright else board
    turn = -1 if direction in ("Right", "Down") else 1
    slid = [slide_left(line[::turn]) for line in lines]
    moved = tuple(line[::turn] for line, _ in slid)
    return (tuple(zip(*moved, strict=True)) if upright else moved), sum(
        earned for _, earned in slid
    )


def can_move(board: Board) -> bool:
    """Return whether any direction changes the board."""
    return any(slide(board, direction)[0] != board for direction in ACTIONS)


class Game2048(TextEnv):
    """Slide tiles on a square board until a tile of value `target` appears.

    The board starts with two random tiles, which the puzzle seed determines. After every move that
    changes the board, a tile appears on a random empty cell: 4 with probability `four_chance`,
    else 2. The noise seed determines these later tiles.

    The reward is the sum of the merged tiles' values (`reward="merge"`) or 0.1 * log2(1 + sum)
    (`reward="log"`). A move that changes nothing is invalid: it earns `invalid_penalty`, and no
    tile appears. The episode ends with success as soon as a tile of value `target` exists, and with
    failure when no move is possible.
    """

    # A 4x4 board has only 480 starts (120 pairs of cells, each with a 2 or a 4), so puzzles repeat.
    finite_puzzles = True
    # `board` is a tuple that `step` replaces, so copies may share it.
    changes = ("_noise",)

    def __init__(
        self,
        *,
        size: int = 4,
        target: int = 2048,
        reward: str = "merge",
        invalid_penalty: float = -0.1,
        four_chance: float = 0.1,
    ) -> None:
        self.size = require_int(NAME, "size", size, 2, 8)
        self.target = require_int(NAME, "target", target, 8, 2**17)
        if self.target.bit_count() != 1:
            raise ConfigError(f"{NAME}: option 'target' must be a power of two, got {target}")
        self.reward = require_choice(NAME, "reward", reward, ("merge", "log"))
        self.invalid_penalty = require_rate(NAME, "invalid_penalty", invalid_penalty, -1e6, 0.0)
        self.four_chance = require_rate(NAME, "four_chance", four_chance)
        self.observation_space = text_space()
        self.action_space = label_space(len(ACTIONS))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Place two tiles from the puzzle stream; later tiles are sampled from the noise stream."""
        puzzle_seed, noise_seed = reset_seeds(self, seed, options)
        self._noise = Noise(stream(puzzle_seed, f"{NAME}/puzzle"))
        self.board: Board = ((0,) * self.size,) * self.size
        self._add_tile()
        self._add_tile()
        self._start = self.board
        self.renew_noise(noise_seed)
        return self.state_text(self.default_state_text), {}

    def renew_noise(self, noise_seed: int) -> None:
        """Sample later tiles from the stream of `noise_seed`."""
        self._noise = Noise(stream(noise_seed, f"{NAME}/noise"))

    def _add_tile(self) -> None:
        empty = [
            (row, col)
            for row in range(self.size)
            for col in range(self.size)
            if not self.board[row][col]
        ]
        where = empty[int(self._noise() * len(empty))]
        tile = 4 if self._noise() < self.four_chance else 2
        rows = [list(row) for row in self.board]
        rows[where[0]][where[1]] = tile
        self.board = tuple(tuple(row) for row in rows)

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make one move. An unknown action, or a move that changes nothing, leaves the board as it
        is and earns the penalty. After the end of the episode the reward is 0."""
        index = action_index(action, ACTIONS)
        before = self.board
        reward = self.invalid_penalty
        if index is not None and not self._reached():
            moved, earned = slide(before, ACTIONS[index])
            if moved != before:
                self.board = moved
                self._add_tile()
                reward = float(earned) if self.reward == "merge" else 0.1 * math.log2(1 + earned)
        success = self._reached()
        # A move that slides tiles also adds one, so it always changes the board.
        changed = self.board != before
        info = {
            "action_is_valid": changed,
            "action_is_effective": changed,
            "success": success and changed,
            "largest_tile": max(map(max, self.board)),
        }
        terminated = success or not can_move(self.board)
        if terminated and not changed:  # the game was over already
            reward = 0.0
        return self.state_text(self.default_state_text), reward, terminated, False, info

    def _reached(self) -> bool:
        return max(map(max, self.board)) >= self.target

    def state_text(self, mode: StateText) -> str:
        """The board row by row, a sentence that lists the cells of each value, or both."""
        if mode == "grid":
            return self._grid()
        if mode == "coords":
            return self._sentence()
        return f"{self._grid()}\n{self._sentence()}"

    def _grid(self) -> str:
        # Cells are not padded for alignment: predicted states are stripped of white space at both
        # ends, which would remove the padding of the first row.
        return "\n".join(" ".join(str(tile) if tile else "_" for tile in row) for row in self.board)

    def _sentence(self) -> str:
        where: dict[int, list[coords.Cell]] = {}
        for row, tiles in enumerate(self.board):
            for col, tile in enumerate(tiles):
                where.setdefault(tile, []).append((row, col))
        empty = coords.cell_list(where.pop(0, [])) or "none"
        tiles = [
            f"{tile} at {coords.cell_list(where[tile])}" for tile in sorted(where, reverse=True)
        ]
        return "; ".join([*tiles, f"empty: {empty}"]) + "."

    def action_names(self) -> tuple[str, ...]:
        """The directions of a slide: Up, Right, Down, Left."""
        return ACTIONS

    def legal_actions(self) -> tuple[str, ...]:
        """The directions that change the board."""
        return tuple(name for name in ACTIONS if slide(self.board, name)[0] != self.board)

    def example_actions(self) -> tuple[str, ...]:
        """A direction that changes the board."""
        return self.legal_actions()[:1]

    def legend(self) -> dict[str, str]:
        """The meaning of `_`, the only symbol that is not a number."""
        return {"_": "empty cell"}

    def instruction(self, mode: StateText) -> str:
        """The rules, and how coordinates are numbered if they are shown."""
        text = (
            f"You are playing 2048 on a {self.size}x{self.size} board of numbered tiles. An action slides all tiles as "
            "far as they go in one direction. Two equal tiles that meet merge into one of twice their value; a tile "
            f"merges at most once per action. After each action a new tile, {self._new_tile()}, appears on an empty "
            "cell. "
            f"The goal is a tile of {self.target}; the game is lost when no action changes the board. "
            f"An action that changes nothing costs {abs(self.invalid_penalty):g}."
        )
        if mode != "grid":
            text += " " + coords.counting(self.size, self.size)
        return text

    def _new_tile(self) -> str:
        if self.four_chance in (0.0, 1.0):
            return f"always {4 if self.four_chance else 2}"
        if self.four_chance == 0.1:
            return "2 or seldom 4"
        return f"2 or with probability {self.four_chance:g} 4"

    def puzzle_text(self) -> str:
        """The target value and the initial board. Later tiles are not part of the puzzle."""
        return f"target {self.target}\n" + "\n".join(" ".join(map(str, row)) for row in self._start)

"""Sudoku: fill the board so that every row, column and box contains each digit once."""

import re
from collections import deque
from collections.abc import Callable, Sequence
from math import inf, isqrt
from typing import Any

import numpy as np

from spa import seeds
from spa.envs import coords
from spa.envs.base import Action, StateText, TextEnv, Variable
from spa.envs.options import (
    choose_state_text,
    require_choice,
    require_int,
    reset_seeds,
    shuffled,
    uniforms,
)
from spa.envs.spaces import text_space
from spa.errors import ConfigError
from spa_games.boards import sudoku_rows
from spa_games.solvers.sudoku import Board, peers, solve, stays_unique, units_of_cells

NAME = "sudoku"
# Numbers of given digits by board size and difficulty, as in the original environment. The original
# has two different numbers for 4x4 easy. Its experiments use 12.
CLUES = {4: {"easy": 12, "medium": 9, "hard": 6}, 9: {"easy": 36, "medium": 30, "hard": 24}}
# The fewest clues of a board with a unique solution: proven for 4x4 and 9x9, the lowest known
# number for 16x16.
FEWEST_CLUES = {4: 4, 9: 17, 16: 55}

MAX_BOARDS = 1_000
"""Maximum number of boards in the expert's search for a way to correct wrong digits."""


def generate_board(rng: np.random.Generator, size: int, clues: int) -> tuple[Board, Board]:
    """Generate a puzzle with exactly `clues` given digits and a unique solution. Returns the puzzle
    and the solution.

    Raises ConfigError if none of 100 solved boards can be reduced to `clues` digits.
    """
    uniform = uniforms(rng, 128)
    for _ in range(100):
        solution = _solved(uniform, size)
        puzzle = _thin_out(uniform, solution, size, clues)
        if puzzle is not None:
            return puzzle, solution
    raise ConfigError(
        f"{NAME}: spa found no {size}x{size} board with {clues} clues and exactly one "
        "solution; raise 'clues'"
    )


def _solved(uniform: Callable[[], float], size: int) -> Board:
    """Generate a random solved board by shuffling the bands, rows, stacks, columns and digits of a
    regular board."""
    base = isqrt(size)

    def lines() -> list[int]:
        return [
            band * base + line
            for band in shuffled(range(base), uniform)
            for line in shuffled(range(base), uniform)
        ]

    rows = lines()
    cols = lines()
    digits = shuffled(range(1, size + 1), uniform)
    # Row r of the regular board is the sequence of digits, shifted by r * base + r // base.
    return tuple(digits[(row * base + row // base + col) % size] for row in rows for col in cols)


def _thin_out(uniform: Callable[[], float], solution: Board, size: int, clues: int) -> Board | None:
    """Remove digits of `solution` in random order until `clues` remain, keeping the solution
    unique. Return None if more than `clues` digits remain."""
    board = list(solution)
    left = size * size
    for _ in range(9):
        for cell in shuffled([cell for cell, digit in enumerate(board) if digit], uniform):
            if left == clues:
                return tuple(board)
            if stays_unique(tuple(board), size, cell):
                board[cell] = 0
                left -= 1
    return tuple(board) if left == clues else None


_NUMBER = re.compile(r"[0-9]{1,9}")
# Signed and decimal numbers (`-1`, `+2`, `.5`, `1.5`) never name a cell.
_SIGNED = re.compile(r"[-+−.][0-9]|[0-9]\.[0-9]")
# A letter of any alphabet: a word character that is neither a digit nor an underscore.
_LETTER = re.compile(r"[^\W\d_]")
# `[^\W\d]*` keeps digits out of the name, so both row1 and row_1 mean row 1.
_NAMED = [
    re.compile(rf"(?<![^\W\d_]){word}[^\W\d]*[^0-9]{{0,8}}([0-9])", re.IGNORECASE)
    for word in ("row", "col")
]
# Such a word between the first two numbers means that the digit comes first: `3 into (1,2)`.
_INTO = re.compile(r"\b(at|in|into|to|on|onto|for)\b", re.IGNORECASE)
# Such a word between the last two numbers means that the digit comes last: `1,2 is 3`.
_BECOMES = re.compile(r"\b(is|to|gets|becomes|as|with|digit|value)\b", re.IGNORECASE)
# After such a word, the digit may come first or last, so `place 3 1 2` is ambiguous.
_WRITE = re.compile(
    r"\b(place|put|write|set|fill|enter|insert|digit|number|value)\b", re.IGNORECASE
)


def read_move(text: str) -> tuple[int, int, int] | None:
    """Parse a move that a model wrote into row, column and digit. Return None if the text is not a
    move or is ambiguous.

    A move has exactly three integers without sign or decimal point. If `row` and `col...` each
    precede a number, the third number is the digit. Otherwise row and column must be adjacent:
    `1,2,3`, `1 2 3`, `(1,2)=3`, `cell 1,2 is 3`. The digit comes first only if the text makes that
    clear: `place 3 at (1,2)`, `put 4 into cell 2,3`, `3 (1,2)`. `place 3 1 2` is rejected.
    """
    if len(text) > 200 or _SIGNED.search(text):
        return None
    matches = list(_NUMBER.finditer(text))
    if len(matches) != 3:
        return None
    numbers = [int(match[0]) for match in matches]
    labelled = _labelled(text, [match.start() for match in matches])
    if labelled is not None:
        row, column = labelled
        return numbers[row], numbers[column], numbers[3 - row - column]
    # In `col 1, 2, 3`, it is unclear which of the other numbers is the row.
    if _NAMED[1].search(text) and not _NAMED[0].search(text):
        return None
    ends = [0, *(match.end() for match in matches)]
    # Not strict, because `ends` has one more item; the text after the last number does not matter.
    before, first, second = (
        text[end : match.start()] for end, match in zip(ends, matches, strict=False)
    )
    if _LETTER.search(first):
        return (
            (numbers[1], numbers[2], numbers[0])
            if _INTO.search(first) and not _LETTER.search(second)
            else None
        )
    if _LETTER.search(second):
        return (numbers[0], numbers[1], numbers[2]) if _BECOMES.search(second) else None
    # `3 (1,2)`: the digit, then the cell in brackets. `grid[1][2] = 3` has the cell first.
    if set("([") & set(first) and not set(")]") & set(first):
        return None if set(")]") & set(second) else (numbers[1], numbers[2], numbers[0])
    if _WRITE.search(before) and not set("([") & set(before):
        return None  # the first number may be the digit
    return numbers[0], numbers[1], numbers[2]


def _labelled(text: str, starts: list[int]) -> tuple[int, int] | None:
    """Return the indices of the row and the column among the three numbers, if the text names both,
    else None. The numbers begin at the positions `starts`."""
    matches = [named.search(text) for named in _NAMED]
    places = [
        starts.index(match.start(1))
        for match in matches
        if match is not None and match.start(1) in starts
    ]
    return (places[0], places[1]) if len(set(places)) == 2 else None


class Sudoku(TextEnv):
    """A Sudoku with a unique solution. The reward is 1 when the board is complete and correct, else
    0.

    An action is `row,column,digit`, counted from 1. A digit that repeats one in its row, column or
    box is not written. A digit that the player wrote can be replaced, but the given digits cannot.
    """

    metadata = {"render_modes": ["text", "text_with_coordinates"]}  # noqa: RUF012 (Gymnasium's own form)

    # `self.cells` is a list, which `step` changes in place.
    changes = ("cells",)

    def __init__(
        self,
        *,
        board_size: int = 4,
        clues: int | Sequence[int] | None = None,
        difficulty: str = "easy",
        max_steps: int | None = 50,
        render_mode: str = "text",
        state_text: StateText | None = None,
    ) -> None:
        """Create a board of `board_size` rows and columns.

        `clues` is the number of given digits, or a list from which each puzzle takes a number at
        random. Without it, `difficulty` (easy, medium, hard) determines the number: 12, 9 or 6 for
        4x4; 36, 30 or 24 for 9x9; and 65, 60 or 55 % of the cells for 16x16. With `max_steps` None,
        the number of actions is limited to the number of empty cells.
        """
        self.size = require_int(NAME, "board_size", board_size, 4, 16)
        if self.size not in FEWEST_CLUES:
            raise ConfigError(f"{NAME}: option 'board_size' must be 4, 9 or 16, got {board_size!r}")
        require_choice(NAME, "difficulty", difficulty, ("easy", "medium", "hard"))
        shares = {"easy": 0.65, "medium": 0.6, "hard": 0.55}
        default = CLUES.get(
            self.size, {level: int(share * self.size**2) for level, share in shares.items()}
        )
        fewest = FEWEST_CLUES[self.size]
        most = self.size**2 - 1
        counts = [default[difficulty]] if clues is None else clues
        self._counts = tuple(
            require_int(NAME, "clues", count, fewest, most)
            for count in (counts if isinstance(counts, list | tuple) else [counts])
        )
        if not self._counts:
            raise ConfigError(f"{NAME}: option 'clues' is an empty list; name a number of clues")
        self.clues = self._counts[0]
        self._most_steps = (
            None if max_steps is None else require_int(NAME, "max_steps", max_steps, 1, 1_000_000)
        )
        self.default_state_text = choose_state_text(
            NAME, state_text, render_mode, self.metadata["render_modes"]
        )
        self.render_mode = render_mode
        self._peers = peers(self.size)
        self.observation_space = text_space(12 * self.size**2 + 200)
        self.action_space = text_space(200)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the puzzle of `seed`, or the board in `options["board"]`, in the format of
        `puzzle_text`."""
        puzzle_seed, _ = reset_seeds(self, seed, options)
        board = (options or {}).get("board")
        if board is None:
            rng = seeds.stream(puzzle_seed, "sudoku/puzzle")
            if len(self._counts) > 1:
                self.clues = self._counts[int(rng.random() * len(self._counts))]
            self.given, _ = generate_board(rng, self.size, self.clues)
        else:
            self.given = self._parse(board)
        self.cells = list(self.given)
        self.steps = 0
        self.max_steps = self._most_steps or self.cells.count(0)
        return self.state_text(self.default_state_text), {}

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Write a digit. A text that is not a move, or a move onto a given digit, is invalid and
        changes nothing. After the end, the reward is 0."""
        self.steps += 1
        # Moves after the end need no guard. On a full board no other digit fits, so nothing
        # changes.
        over = all(self.cells)
        move = self._read(action) if isinstance(action, str) else None
        valid = move is not None and not self.given[move[0]]
        effective = False
        if move is not None and valid:
            cell, digit = move
            effective = digit != self.cells[cell] and self.fits(cell, digit)
            if effective:
                self.cells[cell] = digit
        # Only digits that fit are ever written, so a full board is a solution.
        solved = all(self.cells)
        info = {"action_is_valid": valid, "action_is_effective": effective, "success": solved}
        truncated = self.steps >= self.max_steps and not solved
        reward = float(solved and not over)
        return self.state_text(self.default_state_text), reward, solved, truncated, info

    def fits(self, cell: int, digit: int) -> bool:
        """Return whether `digit` differs from all other digits in the cell's row, column and
        box."""
        return all(self.cells[peer] != digit for peer in self._peers[cell])

    def state_text(self, mode: StateText) -> str:
        """The board on one line, the list of empty cells, or both. Mode "coords" also lists the
        filled cells."""
        if mode == "grid":
            return self._grid(self.cells)
        empty = self._places(lambda digit: digit == 0)
        where = coords.cell_list(empty)
        tail = (
            "no empty cells."
            if not empty
            else f"empty cell{' is' if len(empty) == 1 else 's are'} at {where}."
        )
        if mode == "grid_and_coords":
            return f"{self._grid(self.cells)}\n{tail[0].upper()}{tail[1:]}"
        digits = [digit for digit in self.cells if digit]
        places = zip(self._places(bool), digits, strict=True)
        filled = " ".join(f"({row},{col})={digit}" for (row, col), digit in places)
        return f"Filled cells are {filled}; {tail}"

    def _places(self, wanted: Callable[[int], bool]) -> list[tuple[int, int]]:
        return [
            (cell // self.size + 1, cell % self.size + 1)
            for cell, digit in enumerate(self.cells)
            if wanted(digit)
        ]

    def _grid(self, board: Board | list[int]) -> str:
        # The board is on one line, as in the original: `| . 1 2 4 | 4 2 1 3 | 2 3 4 1 | . 4 . 2`.
        rows = (board[start : start + self.size] for start in range(0, self.size**2, self.size))
        return " ".join(
            "| " + " ".join(str(digit) if digit else "." for digit in row) for row in rows
        )

    def _parse(self, board: str) -> Board:
        """Parse a board that is given as text. Raises ConfigError if it is not a puzzle of this
        size with a unique solution."""
        rows = sudoku_rows(board, self.size)
        valid = {".", *map(str, range(1, self.size + 1))}
        if len(rows) != self.size or any(
            len(row) != self.size or not valid.issuperset(row) for row in rows
        ):
            raise ConfigError(
                f"{NAME}: the board is not a {self.size}x{self.size} Sudoku board: {board!r}"
            )
        cells = tuple(0 if cell == "." else int(cell) for row in rows for cell in row)
        if 0 not in cells or len(solve(cells, self.size, limit=2)) != 1:
            raise ConfigError(
                f"{NAME}: the board must have an empty cell and exactly one solution, got {board!r}"
            )
        return cells

    difficulty_unit = "clues"

    def puzzle_difficulty(self) -> int:
        """The number of given digits."""
        return sum(digit > 0 for digit in self.given)

    def puzzle_text(self) -> str:
        """The given digits as a grid."""
        return self._grid(self.given)

    def to_action(self, text: str) -> str | None:
        """Convert a move in any form that `read_move` accepts to `row,column,digit`. Return None if
        the text is not a move or a number is out of range."""
        move = self._read(text)
        if move is None:
            return None
        return f"{move[0] // self.size + 1},{move[0] % self.size + 1},{move[1]}"

    def _read(self, text: str) -> tuple[int, int] | None:
        """Parse a move into the index of its cell and the digit. Return None if the text is not a
        move on this board."""
        move = read_move(text)
        if move is None or not all(1 <= number <= self.size for number in move):
            return None
        return (move[0] - 1) * self.size + move[1] - 1, move[2]

    def random_action(self, rng: Any) -> str:
        """A random digit for a random cell that is not given. It may break a rule."""
        free = [cell for cell, given in enumerate(self.given) if not given]
        cell, digit = divmod(int(rng.integers(len(free) * self.size)), self.size)
        return f"{free[cell] // self.size + 1},{free[cell] % self.size + 1},{digit + 1}"

    def _missing(self) -> list[tuple[int, int]]:
        """Every empty cell with its digit in the solution, row by row. Empty if the player's digits
        are incompatible with the solution, or no cell is empty."""
        solutions = solve(tuple(self.cells), self.size)
        if not solutions:
            return []
        return [(cell, solutions[0][cell]) for cell, digit in enumerate(self.cells) if not digit]

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """The moves that fill the empty cells with the solution, row by row. If the player's digits
        rule out a solution, a single move that starts to correct them."""
        size = self.size
        moves = self._missing() or self._corrections()
        return tuple(
            f"{cell // size + 1},{cell % size + 1},{digit}" for cell, digit in moves[:limit]
        )

    def _corrections(self) -> list[tuple[int, int]]:
        """Find the first move of a shortest sequence of replacements after which the board has a
        solution.

        If no such sequence is found within `MAX_BOARDS` boards, return a move that corrects one
        wrong digit. The list is empty if no correct digit fits yet.
        """
        own = [cell for cell, digit in enumerate(self.cells) if digit and not self.given[cell]]
        # Wrong digits may block each other's correct value. Then one of them must first be replaced
        # by a third value.
        start = tuple(self.cells)
        first: dict[Board, tuple[int, int] | None] = {start: None}
        queue = deque([start])
        while queue:
            cells = queue.popleft()
            for cell in own:
                around = {cells[peer] for peer in self._peers[cell]}
                for digit in range(1, self.size + 1):
                    after = (*cells[:cell], digit, *cells[cell + 1 :])
                    if digit in around or after in first:
                        continue
                    move = first[cells] or (cell, digit)
                    if solve(after, self.size):
                        return [move]
                    if len(first) < MAX_BOARDS:
                        first[after] = move
                        queue.append(after)
        solution = solve(self.given, self.size)[0]
        wrong = [cell for cell in own if self.cells[cell] != solution[cell]]
        return [(cell, solution[cell]) for cell in wrong if self.fits(cell, solution[cell])][:1]

    def optimal_steps(self) -> int | None:
        """The number of empty cells if filling them solves the puzzle, or None if some digit must
        be replaced first."""
        missing = self._missing()
        return len(missing) if missing or all(self.cells) else None

    def legal_actions(self) -> tuple[str, ...]:
        """Every digit for every cell that is not given, whether it breaks a rule or not."""
        size = self.size
        return tuple(
            f"{cell // size + 1},{cell % size + 1},{digit}"
            for cell, given in enumerate(self.given)
            if not given
            for digit in range(1, size + 1)
        )

    def _fitting(self) -> list[list[str]]:
        """For each empty cell, the actions that write a digit without breaking a rule."""
        size = self.size
        return [
            [
                f"{cell // size + 1},{cell % size + 1},{digit}"
                for digit in range(1, size + 1)
                if self.fits(cell, digit)
            ]
            for cell, written in enumerate(self.cells)
            if not written
        ]

    def greedy_action(self, rng: Any) -> str | None:
        """A random action that writes a digit into an empty cell without breaking a rule. If there
        is none, a random legal action."""
        fitting = [action for actions in self._fitting() for action in actions]
        names = fitting or self.legal_actions()
        return names[int(rng.integers(len(names)))]

    def goal_distance(self) -> float:
        """The number of empty cells, or infinity if some empty cell has no possible digit."""
        fitting = self._fitting()
        return float(len(fitting)) if all(fitting) else inf

    state_key_format = ("cell", "cells as row and column, so that (1,2) is 12")

    def constraint_problem(self) -> dict[str, Variable]:
        """Return each cell as a variable, row by row. Its neighbours are the other cells of its
        row, its column and its box, in this order."""
        size = self.size
        # A 16x16 board has row and column numbers of two digits, so a key needs a separator.
        mark = "" if size < 10 else "."
        keys = [f"{row + 1}{mark}{col + 1}" for row in range(size) for col in range(size)]
        house = units_of_cells(size)
        found = dict[str, Variable]()
        for cell, key in enumerate(keys):
            around = dict.fromkeys(
                keys[peer]
                for group in range(3)
                for peer in self._peers[cell]
                if house[peer][group] == house[cell][group]
            )
            row, col, _ = house[cell]
            found[key] = Variable(
                value=str(self.cells[cell] or ""),
                neighbours=tuple(around),
                actions={
                    str(digit): f"{row + 1},{col + 1},{digit}" for digit in range(1, size + 1)
                },
            )
        return found

    def render(self) -> str:
        """The state text in the default mode, which `state_text` or `render_mode` sets."""
        return self.state_text(self.default_state_text)

    def instruction(self, mode: StateText) -> str:
        """The rules and the form of a move."""
        base = isqrt(self.size)
        text = (
            f"You are solving a {self.size}x{self.size} Sudoku. Fill the empty cells so that every row, every column "
            f"and every {base}x{base} box holds each digit from 1 to {self.size} once. An action is row,column,digit, "
            "counted from 1 from the top left corner: 1,2,3 writes a 3 into row 1, column 2. A digit that clashes with "
            "its row, column or box is not written. You can overwrite your own digits, not the given ones."
        )
        if self._most_steps is None:
            text += " You have as many actions as the puzzle has empty cells."
        if mode != "coords":
            text += " The board is written row by row on one line, each row after a bar; a dot is an empty cell."
        if mode != "grid":
            text += f" Cells are written (row,column), from (1,1) to ({self.size},{self.size})."
        return text

"""Parse states into boards of cells, and mark the cells that differ from the true state.

A state is text: a grid, a coordinate sentence, or a grid followed by a sentence. Both forms become
rows of cells. Text that describes no board becomes a list of words.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

from spa.run.console import printable
from spa.worldmodel.accuracy import is_exact

# Matches `(3,4)` and `(3, 4)`, with at most three digits each.
_COORDINATE = re.compile(r"\((\d{1,3}),\s?(\d{1,3})\)")
# Matches a symbol and all its cells: `(P) is at (0,1)` or `(O) are at (0,1) (1,0)`.
_ENTITY = re.compile(r"\((\S)\) (?:is|are) at ((?:\(\d{1,3},\s?\d{1,3}\)[ ,]*)+)")
# Matches a sentence of letters, such as `No empty cells.`
_SENTENCE = re.compile(r"[A-Z][A-Za-z]+( [A-Za-z]+)+\.")
# Matches the size of the board in an instruction: `the bottom right corner is (3,3)`.
_CORNER = re.compile(r"bottom right corner is \((\d{1,3}),\s?(\d{1,3})\)")
_MAX_TEXT = 20_000
# Larger boards are unreadable, and every cell makes the page bigger.
_MAX_SIDE = 40
_MAX_WORDS = 400
EMPTY = "·"


@dataclass(frozen=True, slots=True)
class Cell:
    """One square of a board, or one word of a text."""

    text: str
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """A state for display.

    `rows` has the cells of the board, row by row, and is empty if the text has no board. `words` is
    the rest of the text. `same` tells whether the state equals the true state.
    """

    rows: tuple[tuple[Cell, ...], ...] = ()
    words: tuple[Cell, ...] = ()
    same: bool = True

    def to_json(self) -> dict[str, object]:
        """The board as JSON-ready values, with cells as [text, differs] pairs."""
        rows = [[[cell.text, int(cell.differs)] for cell in row] for row in self.rows]
        return {
            "rows": rows,
            "words": [[cell.text, int(cell.differs)] for cell in self.words],
            "same": self.same,
        }


Size = tuple[int, int]


def board_size(texts: Iterable[str]) -> Size | None:
    """Number of rows and columns of an episode's boards, read from its instruction and states
    (`texts`). None if no text contains a coordinate.

    The instruction's "bottom right corner" takes precedence. Otherwise, the largest coordinates
    determine the size.
    """
    rows = cols = 0
    for text in texts:
        if corner := _CORNER.search(text):
            return _clip(int(corner[1]) + 1, int(corner[2]) + 1)
        for row, col in _COORDINATE.findall(text[:4000]):
            rows = max(rows, int(row) + 1)
            cols = max(cols, int(col) + 1)
    return _clip(rows, cols) if rows else None


def _clip(rows: int, cols: int) -> Size:
    return min(rows, _MAX_SIDE), min(cols, _MAX_SIDE)


def read_board(text: str, size: Size | None = None) -> Board:
    """Parse a state without marking differences. See `compare`."""
    return compare(text, None, size)


def compare(text: str, truth: str | None, size: Size | None = None) -> Board:
    """Parse a state and mark the cells and words that differ from the true state `truth`. Nothing
    is marked if `truth` is None."""
    rows, words = _parts(text, size)
    if truth is None:
        return Board(_mark_cells(rows, []), tuple(map(Cell, words)))
    true_rows, true_words = _parts(truth, size)
    return Board(
        _mark_cells(rows, true_rows), _mark_words(words, true_words), same=is_exact(text, truth)
    )


def _parts(text: str, size: Size | None) -> tuple[list[list[str]], list[str]]:
    """Split a state into rows of cells, from its grid or its coordinates, and the words outside the
    grid."""
    grid, sentence = _split(text)
    # Line breaks count as words, so that text without a board keeps its lines.
    words = re.findall(r"\n|\S+", sentence.strip())
    return grid or _placed(sentence, size), (
        words if len(words) <= _MAX_WORDS else [*words[:_MAX_WORDS], "…"]
    )


def _split(text: str) -> tuple[list[list[str]], str]:
    """Split text into the cells of its grid and the sentence after it. A grid has at least two
    lines, with at most two different numbers of cells."""
    lines = printable(text[:_MAX_TEXT].strip("\n")).split("\n")
    # The first line with a coordinate, or the first sentence, ends the grid.
    end = next(
        (
            index
            for index, line in enumerate(lines)
            if _COORDINATE.search(line) or _SENTENCE.fullmatch(line)
        ),
        len(lines),
    )
    grid = [line.strip() for line in lines[:end] if line.strip()]
    # The cells of a row may be separated, as in `# _ P`, or not, as in `#_P`.
    cells = [line.split() if "\t" in line or " " in line else list(line) for line in grid]
    widths = {len(row) for row in cells}
    # Prose could pass for a grid, but it has more long words than lines. Two widths are allowed, so
    # that a prediction with one bad row is still shown as a grid.
    long_words = sum(len(word) > 3 for line in grid for word in line.split() if word.isalpha())
    if (
        not 2 <= len(grid) <= _MAX_SIDE
        or len(widths) > 2
        or max(widths) > _MAX_SIDE
        or long_words > len(grid)
    ):
        return [], "\n".join(lines)
    return cells, "\n".join(lines[end:])


def _placed(sentence: str, size: Size | None) -> list[list[str]]:
    """Build a board from a coordinate sentence, in which "(S) is at (row,col) ..." puts symbol S on
    these cells."""
    if size is None:
        return []
    entities = [(symbol, _COORDINATE.findall(cells)) for symbol, cells in _ENTITY.findall(sentence)]
    if not entities:
        return []
    rows = [[EMPTY] * size[1] for _ in range(size[0])]
    for symbol, cells in entities:
        for row, col in ((int(row), int(col)) for row, col in cells):
            if row < size[0] and col < size[1]:
                here = rows[row][col]
                # If two symbols share a cell, show both, such as `OP` for a player in a hole.
                rows[row][col] = symbol if here == EMPTY else here + symbol
    return rows


def _mark_cells(rows: list[list[str]], truth: list[list[str]]) -> tuple[tuple[Cell, ...], ...]:
    """Mark the cells that differ from the true cell at the same position. Missing cells are added
    and marked."""
    if not rows or not truth:
        return tuple(tuple(map(Cell, row)) for row in rows)
    return tuple(
        tuple(Cell(cell, cell != true) for cell, true in zip_longest(*pair, fillvalue=" "))
        for pair in zip_longest(rows, truth, fillvalue=[])
    )


def _mark_words(words: list[str], truth: list[str]) -> tuple[Cell, ...]:
    # `autojunk` would ignore words that are frequent in a long text, such as `at`.
    matcher = difflib.SequenceMatcher(None, truth, words, autojunk=False)
    return tuple(
        Cell(word, kind != "equal")
        for kind, _, _, start, end in matcher.get_opcodes()
        for word in words[start:end]
    )

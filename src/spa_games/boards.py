"""Boards of Sokoban and Sudoku in the formats of other collections."""

from collections.abc import Sequence

from spa.envs.boards import board_lines

# XSB symbols, as in Boxoban -> spa's symbols: floor (a blank or `-`), target, box on target, box,
# player, player on target. `#` is a wall in both.
_XSB = str.maketrans(" -.*$@+", "__O√XPS")


def sokoban_lines(text: str) -> list[str]:
    """The lines of a Sokoban board in spa's symbols. XSB levels are translated: symbols are
    replaced, short lines are padded, and floor outside the room becomes wall."""
    lines = board_lines(text)
    if not set("@+$*.") & set(text):
        return lines
    width = max(map(len, lines))
    rows = [list(line.ljust(width).translate(_XSB)) for line in lines]
    _fill_outside(rows)
    return ["".join(row) for row in rows]


def _fill_outside(rows: Sequence[list[str]]) -> None:
    """Turn floor cells that are connected to the border into walls, in place. Do nothing if the
    room is not closed."""
    height = len(rows)
    width = len(rows[0])
    reached: set[tuple[int, int]] = set()
    open_cells = [
        (row, col)
        for row in range(height)
        for col in range(width)
        if row in (0, height - 1) or col in (0, width - 1)
    ]
    while open_cells:
        row, col = open_cells.pop()
        inside = 0 <= row < height and 0 <= col < width
        if inside and rows[row][col] != "#" and (row, col) not in reached:
            reached.add((row, col))
            open_cells += [(row + 1, col), (row - 1, col), (row, col + 1), (row, col - 1)]
    if all(rows[row][col] == "_" for row, col in reached):
        for row, col in reached:
            rows[row][col] = "#"


def sudoku_rows(text: str, size: int) -> list[list[str]]:
    """Split a Sudoku board into rows of cells, with `.` for an empty cell. The board is written as
    `| . 1 | …`, or with one character per cell (81 for 9x9), where `0` is also an empty cell. The
    symbols and the number of rows are not checked."""
    cells = "".join(text.split())
    if "|" in text or len(cells) != size**2:
        return [row.split() for row in text.strip().removeprefix("|").split("|")]
    rows = [cells[start : start + size] for start in range(0, size**2, size)]
    return [list(row.replace("0", ".")) for row in rows]

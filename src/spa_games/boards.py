"""Parsers for Sokoban and Sudoku boards in the formats of other collections."""

from collections.abc import Sequence

from spa.envs.boards import board_lines

# Maps XSB symbols (used by Boxoban) to spa's: floor (a blank or `-`), target, box on target, box,
# player, player on target. A wall is `#` in both.
_XSB = str.maketrans(" -.*$@+", "__O√XPS")


def sokoban_lines(text: str) -> list[str]:
    """Split a Sokoban board into lines of spa's symbols.

    An XSB level is translated: symbols are replaced, short lines are padded, and floor outside the
    room becomes wall.
    """
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
    """Split a Sudoku board into rows of cells, where `.` is an empty cell.

    Rows may be separated by bars, as in `| . 1 | …`. Alternatively, the board has one character per
    cell (81 for 9x9), and `0` is also an empty cell. Symbols and the number of rows are not
    validated.
    """
    cells = "".join(text.split())
    if "|" in text or len(cells) != size**2:
        return [row.split() for row in text.strip().removeprefix("|").split("|")]
    rows = [cells[start : start + size] for start in range(0, size**2, size)]
    return [list(row.replace("0", ".")) for row in rows]

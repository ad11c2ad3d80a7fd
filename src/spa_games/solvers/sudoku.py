"""A Sudoku solver by backtracking, which always fills a cell with the fewest candidates next."""

from functools import lru_cache
from math import isqrt

Board = tuple[int, ...]
"""The digits of a board, row by row; 0 is an empty cell."""


@lru_cache
def units_of_cells(size: int) -> tuple[tuple[int, int, int], ...]:
    """The row, column and box of each cell, all counted from 0."""
    base = isqrt(size)
    return tuple(
        (row, col, row // base * base + col // base) for row in range(size) for col in range(size)
    )


@lru_cache
def peers(size: int) -> tuple[tuple[int, ...], ...]:
    """For each cell, the other cells in its row, column or box."""
    house = units_of_cells(size)
    cells = range(size * size)

    def together(one: int, other: int) -> bool:
        return one != other and any(a == b for a, b in zip(house[one], house[other], strict=True))

    return tuple(tuple(other for other in cells if together(cell, other)) for cell in cells)


def solve(board: Board, size: int, limit: int = 1) -> list[Board]:
    """Find the first `limit` solutions of `board`. The list is empty if there is none or the board
    already breaks a rule."""
    house = units_of_cells(size)
    # In a mask, bit d is set if the digit d (1 to size) is not yet used.
    full = (1 << size + 1) - 2
    rows = [full] * size
    cols = [full] * size
    boxes = [full] * size
    for (row, col, box), digit in zip(house, board, strict=True):
        bit = 1 << digit if digit else 0
        if bit & ~(rows[row] & cols[col] & boxes[box]):
            return []
        rows[row] = rows[row] ^ bit
        cols[col] = cols[col] ^ bit
        boxes[box] = boxes[box] ^ bit
    cells = list(board)
    solutions: list[Board] = []

    def search(empty: list[int]) -> None:
        if not empty:
            solutions.append(tuple(cells))
            return
        fewest = size + 1
        where = -1
        options = 0
        for cell in empty:
            row, col, box = house[cell]
            mask = rows[row] & cols[col] & boxes[box]
            if mask.bit_count() < fewest:
                fewest = mask.bit_count()
                where = cell
                options = mask
                # Stop at a cell with one candidate, which is forced, or with none, which is a dead
                # end.
                if fewest <= 1:
                    break
        row, col, box = house[where]
        rest = [cell for cell in empty if cell != where]
        while options and len(solutions) < limit:
            bit = options & -options
            options ^= bit
            cells[where] = bit.bit_length() - 1
            # XOR marks the digit as used during the search and as free again after it.
            rows[row] = rows[row] ^ bit
            cols[col] = cols[col] ^ bit
            boxes[box] = boxes[box] ^ bit
            search(rest)
            rows[row] = rows[row] ^ bit
            cols[col] = cols[col] ^ bit
            boxes[box] = boxes[box] ^ bit
        cells[where] = 0

    search([cell for cell, digit in enumerate(board) if not digit])
    return solutions


def stays_unique(board: Board, size: int, cell: int) -> bool:
    """Return whether `board`, which has one solution, still has only one without the digit of
    `cell`.

    A second solution would have another digit in `cell`, so it suffices to try the other digits
    there.
    """
    before = board[:cell]
    after = board[cell + 1 :]
    others = set(range(1, size + 1)) - {board[cell]} - {board[peer] for peer in peers(size)[cell]}
    return not any(solve((*before, digit, *after), size) for digit in others)

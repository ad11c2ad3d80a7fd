"""Solve Sudoku by backtracking; the next cell to fill is always one with the fewest candidates."""

from functools import lru_cache
from math import isqrt

Board = tuple[int, ...]
"""Digits row by row, 0 for an empty cell."""


@lru_cache
def houses(size: int) -> tuple[tuple[int, int, int], ...]:
    """For each cell its row, its column, and its box, each counted from 0."""
    base = isqrt(size)
    return tuple(
        (row, col, row // base * base + col // base) for row in range(size) for col in range(size)
    )


@lru_cache
def peers(size: int) -> tuple[tuple[int, ...], ...]:
    """For each cell the other cells of its row, column and box."""
    house = houses(size)
    cells = range(size * size)

    def together(one: int, other: int) -> bool:
        return one != other and any(a == b for a, b in zip(house[one], house[other], strict=True))

    return tuple(tuple(other for other in cells if together(cell, other)) for cell in cells)


def solve(board: Board, size: int, limit: int = 1) -> list[Board]:
    """The first `limit` solutions of `board`; an empty list if it has none or already breaks a
    rule."""
    house = houses(size)
    # Bits 1 to size: bit d is set if digit d is still free.
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
                # No cell is better than one with a single option, which is forced, or with none,
                # which is a dead end. So the search for a better cell stops.
                if fewest <= 1:
                    break
        row, col, box = house[where]
        rest = [cell for cell in empty if cell != where]
        while options and len(solutions) < limit:
            bit = options & -options
            options ^= bit
            cells[where] = bit.bit_length() - 1
            # XOR removes the digit from the free ones here and restores it after the search.
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
    """Return whether `board`, which has one solution, still has only one when the digit of `cell`
    is removed.

    A second solution would differ in `cell` itself, so it suffices to search with each other digit
    there.
    """
    before = board[:cell]
    after = board[cell + 1 :]
    others = set(range(1, size + 1)) - {board[cell]} - {board[peer] for peer in peers(size)[cell]}
    return not any(solve((*before, digit, *after), size) for digit in others)

"""Build the coordinate sentence, which gives the positions of all objects in words."""

from collections.abc import Iterable

Cell = tuple[int, int]


def cell_list(cells: Iterable[Cell]) -> str:
    """Format cells as `(0,1) (1,0)`, in the given order."""
    return " ".join(f"({row},{col})" for row, col in cells)


def phrase(singular: str, plural: str, symbol: str, cells: Iterable[Cell]) -> str:
    """Describe where all objects of one kind are.

    Examples: `hole (O) is at (0,1)`, `holes (O) are at (0,1) (1,0)` in row-major order, or `no
    holes (O)`. Kinds without objects are mentioned, too, so that the sentence has the same parts in
    every state.
    """
    ordered = sorted(cells)
    if not ordered:
        return f"no {plural} ({symbol})"
    if len(ordered) == 1:
        return f"{singular} ({symbol}) is at {cell_list(ordered)}"
    return f"{plural} ({symbol}) are at {cell_list(ordered)}"


def counting(rows: int, cols: int) -> str:
    """Explain the coordinates of a board of this size, for an instruction."""
    return (
        "Coordinates are (row,column), counted from 0: the top left corner is (0,0), "
        f"the bottom right corner is ({rows - 1},{cols - 1}). Rows grow downwards, columns to the right."
    )

"""Read files of boards."""

from pathlib import Path

from spa.errors import DataError


def board_lines(text: str) -> list[str]:
    """The lines of a board, without surrounding line breaks. Files may have Windows line breaks."""
    return [line.rstrip("\r") for line in text.strip("\r\n").split("\n")]


def read_boards(path: Path | str) -> list[str]:
    """Read the boards of a text file, each for `reset(options={"board": text})`: Sokoban levels
    separated by an empty line or a line that begins with `;` (Boxoban), or one Sudoku per line.

    Raises DataError if the file cannot be read or has no board.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the file of boards cannot be read ({error})") from error
    boards: list[list[str]] = [[]]
    for line in board_lines(text):
        if not line.strip() or line.startswith(";"):
            boards.append([])
        elif "#" in line:
            boards[-1].append(line)
        else:
            boards += [[line], []]
    found = ["\n".join(lines) for lines in boards if lines]
    if not found:
        raise DataError(f"{path}: the file has no board; write Sokoban levels, or a Sudoku a line")
    return found

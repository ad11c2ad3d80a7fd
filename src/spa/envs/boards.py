"""Read puzzle boards from text files."""

from pathlib import Path

from spa.errors import DataError


def board_lines(text: str) -> list[str]:
    """Split a board into lines, without the line breaks around it. Accepts Windows line breaks."""
    return [line.rstrip("\r") for line in text.strip("\r\n").split("\n")]


def read_boards(path: Path | str) -> list[str]:
    """Read the boards of a text file, each as a string for `reset(options={"board": text})`.

    The file has either one Sudoku per line, or Sokoban levels that are separated by an empty line
    or by a line that begins with `;` (Boxoban).

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

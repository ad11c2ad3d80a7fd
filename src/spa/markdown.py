"""Tables as Markdown."""

from collections.abc import Collection, Iterable, Sequence


def markdown_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[int] = ()
) -> str:
    """A table without a line break at its end. Columns whose numbers, from 0, are in `right` are
    aligned right."""
    marks = ("---:" if number in right else "---" for number in range(len(head)))
    # A `|`, as in `int | None`, would end the cell.
    escaped = ([cell.replace("|", "\\|") for cell in row] for row in (head, *rows))
    head_line, *lines = (f"| {' | '.join(cells)} |" for cells in escaped)
    return "\n".join([head_line, f"|{'|'.join(marks)}|", *lines])

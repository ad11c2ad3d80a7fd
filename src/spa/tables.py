"""A table that can be printed in a terminal, or written as Markdown or HTML."""

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from spa.run.console import printable, results_console

if TYPE_CHECKING:  # only needed for terminals
    from rich.table import Table as TerminalTable


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text cells."""

    columns: Sequence[str]  # names of the columns
    rows: Collection[Sequence[str]]  # the cells of each row
    right: Collection[int] = ()  # indices of the right-aligned (numeric) columns

    def print(self, title: str = "") -> None:
        """Print the table to stdout, with a frame if there is a title."""
        console = results_console()
        with console.capture() as shown:
            console.print(self.terminal(title))
        # rich pads the last column with spaces, which are removed.
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in shown.get().splitlines()))

    def terminal(self, title: str = "") -> "TerminalTable":
        """Return the table as a `rich` table, for the console."""
        from rich.table import Table as TerminalTable
        from rich.text import Text

        # `Text` instead of `str`, because rich would interpret brackets in a str as markup.
        columns, *rows = (
            [Text(printable(cell)) for cell in row] for row in (self.columns, *self.rows)
        )
        made = (
            TerminalTable(title=Text(printable(title), style="table.title"))
            if title
            else TerminalTable(
                box=None, pad_edge=False, header_style="bold", show_header=any(self.columns)
            )
        )
        for number, name in enumerate(columns):
            side = "right" if number in self.right else "left"
            made.add_column(name, justify=side, overflow="fold")
        for row in rows:
            made.add_row(*row)
        return made

    def markdown(self) -> str:
        """Return the table as Markdown, without a trailing line break."""
        marks = ("---:" if number in self.right else "---" for number in range(len(self.columns)))
        # A `|`, as in `int | None`, would end the cell, and a line break would end the row.
        escaped = (
            [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
            for row in (self.columns, *self.rows)
        )
        head, *lines = (f"| {' | '.join(cells)} |" for cells in escaped)
        return "\n".join([head, f"|{'|'.join(marks)}|", *lines])

    def __html__(self) -> str:
        """Return the table as HTML, which a template shows with `{{ table }}`. A cell that is
        `Markup` is not escaped."""
        sides = [
            ' class="number"' if number in self.right else "" for number in range(len(self.columns))
        ]
        head = "".join(
            f'<th scope="col"{side}>{_cell(name)}</th>'
            for side, name in zip(sides, self.columns, strict=True)
        )
        rows = "\n".join(
            f'<tr><th scope="row"{sides[0]}>{_cell(first)}</th>'
            + "".join(
                f"<td{side}>{_cell(cell)}</td>" for side, cell in zip(sides[1:], cells, strict=True)
            )
            + "</tr>"
            for first, *cells in self.rows
        )
        # The header is left out if no column has a name, because it would be an empty line.
        top = f"<thead><tr>{head}</tr></thead>\n" if any(self.columns) else ""
        return f'<div class="scroll"><table>{top}<tbody>{rows}</tbody></table></div>'


def _cell(text: str) -> str:
    # `bdi` isolates right-to-left text, which could otherwise reorder the text around it.
    return text if isinstance(text, Markup) else f"<bdi>{escape(text)}</bdi>"

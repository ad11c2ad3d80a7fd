"""Render a report as Markdown. Content and order match the HTML page, and boards are in code
blocks."""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import jinja2

from spa.tables import Table
from spa_report.charts import number
from spa_report.content import Report
from spa_report.facts import ENDINGS
from spa_report.results import points


def markdown(report: Report) -> str:
    """Render the report as Markdown."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    # `autoescape` would escape for HTML. The filters below escape for Markdown.
    made = jinja2.Environment(loader=loader, autoescape=False, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"md": _safe, "boards": _boards}
    page = made.get_template("report.md.j2").render(
        report=report, number=number, points=points, endings=ENDINGS, table=_table
    )
    # An omitted section leaves several blank lines, which are merged here.
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" +\n", "\n", page)).strip() + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int]) -> str:
    names, *cells = ([_safe(cell) for cell in row] for row in (columns, *rows))
    return Table(names, cells, right).markdown()


def _boards(columns: Sequence[tuple[str, dict[str, Any] | None]]) -> str:
    """Draw titled boards next to each other in a code block, with wrong cells in [brackets]."""
    blocks = []
    for title, board in columns:
        if board is None:
            continue
        cells = [
            [f"[{text}]" if differs else f" {text} " for text, differs in row]
            for row in board["rows"]
        ]
        words = " ".join(f"[{text}]" if differs else text for text, differs in board["words"])
        cut = words if len(words) <= 400 else f"{words[:399]}…"
        lines = ["".join(row) for row in cells]
        if not cells or any(differs for _, differs in board["words"]):
            lines += [line.strip() for line in cut.splitlines()]
        width = max(map(len, (title, *lines)))
        blocks.append([text.ljust(width) for text in (title, *lines)])
    # Fill shorter blocks with blank lines, so that all blocks have the same height.
    height = max(map(len, blocks))
    filled = [block + [" " * len(block[0])] * (height - len(block)) for block in blocks]
    return _fenced("\n".join("   ".join(row).rstrip() for row in zip(*filled, strict=True)))


def _fenced(text: str) -> str:
    # A fence must be longer than any sequence of backticks inside it.
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _safe(text: str) -> str:
    """Escape text of a run, so that Markdown does not read it as markup or HTML."""
    return re.sub(r"([\\`*_~\[\]<>&#])", r"\\\1", " ".join(text.splitlines()))

"""One table for a terminal, Markdown and HTML."""

import pytest
from markupsafe import Markup

from spa.tables import Table

TABLE = Table(("key", "n"), [("a | b\nc", "1"), ("[x] <y>", "10")], right=[1])


def test_markdown_escapes_cells_and_aligns_numbers_right():
    assert TABLE.markdown() == "| key | n |\n|---|---:|\n| a \\| b c | 1 |\n| [x] <y> | 10 |"
    assert Table(("", ""), []).markdown() == "|  |  |\n|---|---|"


def test_html_escapes_all_but_markup():
    shown = Table(("key", "n"), [("<a>", Markup("<b>1</b>"))], right=[1]).__html__()
    assert '<th scope="col" class="number"><bdi>n</bdi></th>' in shown
    assert '<th scope="row"><bdi>&lt;a&gt;</bdi></th><td class="number"><b>1</b></td>' in shown
    assert "<thead>" not in Table(("", ""), [("key", "value")]).__html__()


def test_a_table_with_a_title_has_a_frame(capsys: pytest.CaptureFixture[str]):
    plain = Table(("key", "n"), [("[x]\x1b", "1"), ("y" * 300, "10")], right=[1])
    plain.print()
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == ["key", "n"] and head.endswith("  n")
    # Brackets are no markup, escapes of a terminal are shown, and a pipe wraps nothing.
    assert first.startswith("[x]\\x1b ") and second == f"{'y' * 300}  10"
    plain.print("a title")
    assert "┃ key" in capsys.readouterr().out

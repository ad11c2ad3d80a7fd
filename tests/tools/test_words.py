"""The word check finds refused words and long sentences in prose, and nothing in code, tables and comments."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
LONG = " ".join(["word"] * 36)


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("words")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("It goes on.\n", [1]),
        ("Fine.\n\nThe table\nstands here, beside it.\n", [4, 4]),
        ("P stands for the player.\n", []),
        ("`beside` is a key of [ours](beside.md).\n", []),
        (
            "```text\nIt goes on.\n```\n\n| it | goes on |\n\n<!-- it\ngoes on -->\n\n    goes on\n\nAnew.\n",
            [12],
        ),
        (f"Short. {LONG}.\n", [1]),
        (f"Line one\nof two. One\n{LONG[:-5]}.\n", [2]),
        (f"* {LONG[:-5]}\n* {LONG[:-5]}\n", []),
        ("Not a riddle:\n# What binds\n", [2]),
    ],
)
def test_problems_are_found_at_their_lines(words: ModuleType, text: str, lines: list[int]):
    assert [line for line, _ in words.problems(text)] == lines


def test_a_named_page_with_a_problem_fails(
    words: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    page = tmp_path / "page.md"
    page.write_text("Nobody reads this.\n", encoding="utf-8")
    assert words.main([str(page)]) == 1
    assert f"{page}:1: refused word 'Nobody'" in capsys.readouterr().out


def test_finished_pages_exist_and_have_no_problem(words: ModuleType):
    assert all((ROOT / name).exists() or (ROOT / "docs" / name).exists() for name in words.DONE)
    assert words.main([]) == 0

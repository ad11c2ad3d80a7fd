"""The word check finds refused words and long sentences in prose, and nothing in code, tables and comments."""

import importlib
import re
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


SOURCE = '''"""A module.

It goes on.
"""

import logging

LIMIT = "nobody reads a constant"  # nobody reads a comment
"""Nobody's constant."""


def anew(value):
    """Fine."""
    logging.warning("it starts " "anew")
    if value:
        raise ValueError(f"{value} is spoilt; " + "beside it")
    parser.add_argument("--beside", help="whoever asks", default="goes on")
'''


def test_problems_of_a_source_file_are_those_of_docstrings_and_messages(words: ModuleType):
    found = list(words.source_problems(SOURCE))
    assert [(line, re.findall("'(.*?)'", problem)[0]) for line, problem in found] == [
        (3, "goes on"),
        (9, "Nobody"),
        (14, "anew"),
        (16, "spoilt"),
        (16, "beside"),
        (17, "whoever"),
    ]

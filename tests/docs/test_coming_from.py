"""Names in docs/coming-from.md exist: ours, verl's and RAGEN's as the original uses them, TRL's where it is installed."""

import dataclasses
import json
import re
from functools import reduce
from pathlib import Path

import pytest

from spa.config.load import load_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
ORIGINAL = json.loads(
    (ROOT / "src" / "spa_original" / "original_keys.json").read_text(encoding="utf-8")
)


def names(stack):
    """(their name, our key) of every row of a table."""
    match = re.search(rf"<!-- keys: {stack} -->\n(.*?)\n\n", PAGE, re.S)
    assert match, stack
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in match[1].splitlines()[2:]
    ]
    return [(row[0], row[1]) for row in rows]


@pytest.mark.parametrize("stack", ["GRPOConfig", "verl", "RAGEN"])
def test_our_keys_exist(stack):
    cfg = load_config("base")
    for _, key in names(stack):
        reduce(
            lambda part, name: part[name] if isinstance(part, dict) else getattr(part, name),
            key.split("."),
            cfg,
        )


@pytest.mark.parametrize("stack", ["verl", "RAGEN"])
def test_their_keys_are_those_of_the_original(stack):
    assert [theirs for theirs, _ in names(stack) if theirs not in ORIGINAL] == []


def test_trl_has_the_arguments():
    trl = pytest.importorskip("trl")
    assert {theirs for theirs, _ in names("GRPOConfig")} <= {
        field.name for field in dataclasses.fields(trl.GRPOConfig)
    }

"""The pages about environments: the table is that of the cards, pictures exist, commands work as printed."""

import importlib.util
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str) -> list[str]:
    """The command lines of a page, without blocks that are marked as not run."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(
        r"(?<!-->\n)^```sh\n(.*?)^```|^<!-- commands: dry run -->\n```sh\n(.*?)^```",
        text,
        re.M | re.S,
    )
    return re.findall(
        r"(?m)^((?:spa|pytest|mkdir|cd) [^#\n]*?)\s*(?:#.*)?$", "".join(map("".join, blocks))
    )


def test_the_table_is_that_of_the_cards():
    spec = importlib.util.spec_from_file_location(
        "environment_pictures", DOCS / "environment_pictures.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.table() in (DOCS / "environments.md").read_text(encoding="utf-8")

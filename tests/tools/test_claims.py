"""`make claims`: every row of the result tables with a figure is held against data."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import claims  # noqa: E402 # pyright: ignore[reportMissingImports]

FIGURE = re.compile(r"\d\.\d|\[-?\d")


def test_each_row_of_a_table_has_a_claim(monkeypatch):
    monkeypatch.chdir(ROOT)
    made = claims.every_claim()
    for page in ("README.md", claims.PAGE):
        text = (ROOT / page).read_text(encoding="utf-8")
        said = [claim for where, claim in made if where == page]
        rows = [row for row in text.splitlines() if row.startswith("|") and FIGURE.search(row)]
        assert len(rows) > 5
        assert [row for row in rows if not any(claim in row for claim in said)] == []

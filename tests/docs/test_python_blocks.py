"""The Python blocks of README.md and docs/api.md run, in the page's order, with training shortened.

Both pages train the same run. They share a folder, so that it is trained once."""

import re
from pathlib import Path

import pytest
from helpers.tiny_preset import SMALL

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "api.md"]


def test_python_blocks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    for page in PAGES:
        run(page)
        printed = capsys.readouterr().out
        assert "global_step_1" in printed and "Pass@1" in printed, page.name


def run(page: Path) -> None:
    """Run all blocks of a page in one namespace."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    code = "\n".join(blocks)
    assert "import spa" in code and code.count("overrides={") == len(
        re.findall(r"spa\.(?:train|compare)\(", code)
    )
    names = {"SMALL": SMALL}
    code = re.sub(r"samples=\d+", "samples=2", code)
    exec(re.sub(r"overrides=(\{.*?\})", r"overrides=\1 | SMALL", code), names)
    if comparison := names.get("comparison"):
        assert {metrics["method"] for metrics in comparison.metrics} == {"vanilla"}

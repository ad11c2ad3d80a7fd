"""The Python blocks of README.md and docs/api.md run, in the page's order, with training shortened."""

import re
from pathlib import Path

import pytest
from helpers.tiny_preset import SMALL

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "api.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    code = "\n".join(blocks)
    assert "import spa" in code and code.count("overrides={") == len(
        re.findall(r"spa\.(?:train|compare)\(", code)
    )
    exec(re.sub(r"overrides=(\{.*?\})", r"overrides=\1 | SMALL", code), {"SMALL": SMALL})
    printed = capsys.readouterr().out
    assert "global_step_1" in printed and "Pass@1" in printed

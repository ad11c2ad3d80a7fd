"""The notebooks run from top to bottom in one namespace, with training shortened, and hold no outputs."""

import json
import re
import sys
from pathlib import Path

import pytest
from helpers.tiny_preset import SMALL

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def cells(notebook: Path, kind: str) -> list[str]:
    """The sources of a notebook's cells of one kind."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert all(not cell.get("outputs") for cell in content["cells"]), "strip the outputs"
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    # The comparison of 01 has a second round of self-play; one process is enough for it.
    rounds = {"generate.later_batches": 1, "compare.parallel": 1}
    names = {"SHORT": SMALL | (rounds if notebook.stem == "01_demo_cpu" else {})}
    for code in cells(notebook, "code"):
        shortened = re.sub(
            r"overrides=(\{.*?\n? *\})(?=,?\n? *\))", r"overrides=\1 | SHORT", code, flags=re.S
        )
        shortened = re.sub(r"puzzles=\d+, samples=\d+", "puzzles=4, samples=2", shortened)
        exec(shortened, names)
    assert any(Path("runs").iterdir())
    if notebook.stem == "03_use_the_world_model":  # it trains these stages and no other
        assert {metrics["stage"] for metrics in names["run"].metrics} == {"data", "sft"}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_notebooks_lead_somewhere(notebook: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", "\n".join(cells(notebook, "markdown"))):
        assert (notebook.parent / target).exists(), target

"""The notebooks run from top to bottom in one namespace, with training shortened, and hold no outputs."""

import json
import re
import sys
from functools import partial
from pathlib import Path

import pytest
from helpers.grids import in_this_process
from helpers.tiny_preset import SMALL

import spa_sweeps.api
from spa.cli import main
from spa_sweeps.compare import run_comparison

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
    # A process that imports everything once more takes longer than what it does.
    monkeypatch.setattr(
        spa_sweeps.api, "run_comparison", partial(run_comparison, pool=in_this_process)
    )
    # The comparison of 01 has a second round of self-play, with planning.
    rounds = {
        "generate.later_batches": 1,
        "generate.imagine.n": 2,
        "generate.imagine.depth": 2,
        "compare.parallel": 1,
    }
    names = {
        "SHORT": SMALL | (rounds if notebook.stem == "01_demo_cpu" else {}),
        "run_here": run_here,
    }
    for code in cells(notebook, "code"):
        shortened = re.sub(
            r"overrides=(\{.*?\n? *\})(?=,?\n? *\))", r"overrides=\1 | SHORT", code, flags=re.S
        )
        shortened = re.sub(r"puzzles=\d+", "puzzles=4", shortened)
        shortened = re.sub(r"samples=\d+", "samples=2", shortened)
        exec(
            shortened.replace('subprocess.run([sys.executable, "-m", "spa", ', "run_here(["), names
        )
    assert any(Path("runs").iterdir())
    if notebook.stem == "03_use_the_world_model":  # it trains these stages and no other
        assert {metrics["stage"] for metrics in names["run"].metrics} == {"data", "sft"}


def run_here(words: list[str], *, check: bool) -> None:
    """Run a command of `spa` in this process."""
    assert main(words) == 0 and check


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_notebooks_lead_somewhere(notebook: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", "\n".join(cells(notebook, "markdown"))):
        assert (notebook.parent / target).exists(), target

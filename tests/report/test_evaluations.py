"""Evaluations without a training: what the command prints, and what the reports show."""

import json
import shutil
from pathlib import Path

import pytest

from spa.cli import execute
from spa_report.charts import number
from spa_report.content import build
from spa_report.overview import list_runs
from spa_report.reading import open_run
from spa_report.viewer import Library


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with nothing but an evaluation of random play."""
    run = tmp_path_factory.mktemp("runs") / "my run"
    command = ["eval", "random", "--config", "demo", "--puzzles", "2", "--samples", "2"]
    assert execute([*command, f"trainer.run_dir={run}"]) == 0
    return run


def test_the_run_of_an_evaluation_is_opened_by_its_own_folder(
    evaluated: Path, tmp_path: Path, capsys
):
    assert execute(["view", str(evaluated), "--export", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.endswith("page.html: 4 episodes\n")
    assert [line.name for line in list_runs(evaluated.parent, 0.0)] == [evaluated.name]


@pytest.mark.parametrize("folder", [".", "eval", "eval/random-demo-FrozenLakeNoSlip"])
def test_the_headline_of_a_finished_evaluation_is_its_result(evaluated: Path, folder: str):
    name = "random-demo-FrozenLakeNoSlip"
    result = json.loads((evaluated / "eval" / f"{name}.json").read_text(encoding="utf-8"))
    (tag,) = result["tags"].values()
    verdict = build([open_run(evaluated / folder)]).verdict
    solved = number(tag["pass@1"]["mean"], percent=True)
    assert verdict.startswith(f"{name}: Pass@1 {solved} on 2 puzzles (95 % CI over puzzles [")


def test_a_smaller_evaluation_is_reported_on_its_own_puzzles(evaluated: Path, tmp_path: Path):
    """The folder of its episodes still has those of the larger one."""
    run = tmp_path / "run"
    shutil.copytree(evaluated, run)
    command = ["eval", "random", "--config", "demo", "--puzzles", "1", "--samples", "2"]
    assert execute([*command, f"trainer.run_dir={run}"]) == 0
    assert " on 1 puzzles " in build([open_run(run)]).verdict


def test_the_viewer_shows_the_result_once_it_is_written(evaluated: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(evaluated, run)
    result = run / "eval" / "random-demo-FrozenLakeNoSlip.json"
    kept = result.read_bytes()
    result.unlink()
    library = Library(run, caches=tmp_path)
    (name,) = library.places()
    before = library.report([name])
    result.write_bytes(kept)
    after = library.report([name])
    assert before is not None and "In progress" in before.verdict
    assert after is not None and "Pass@1" in after.verdict

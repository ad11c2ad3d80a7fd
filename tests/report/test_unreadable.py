"""A run that cannot be read costs itself: the table, a report on several runs and the viewer have the others."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from report_fixtures import write_stage

from spa.cli import main
from spa_report.index import EpisodeIndex
from spa_report.overview import list_runs


def replaced_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS: dict[str, Callable[[Path], object]] = {
    "a folder for metrics.jsonl": lambda run: replaced_by_a_folder(run / "ppo" / "metrics.jsonl"),
    "a folder for config.yaml": lambda run: replaced_by_a_folder(run / "ppo" / "config.yaml"),
    "a number that is no float": lambda run: (run / "ppo" / "metrics.jsonl").write_text(
        '{"step":1,"x":' + "9" * 400 + "}\n"
    ),
    "a configuration without end": lambda run: (run / "ppo" / "config.yaml").write_text(
        "[" * 1_000
    ),
    "a text for a number": lambda run: (run / "summary.json").write_text(
        '{"seconds": {"total": "long"}}'
    ),
    "no permission": lambda run: (run / "ppo").chmod(0),
}
UNREADABLE = ("a folder for metrics.jsonl", "a configuration without end", "no permission")
ROOTLESS = pytest.param(
    "no permission",
    marks=pytest.mark.skipif(os.geteuid() == 0, reason="root reads what it may not"),
)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "runs"
    for name in ("bad", "good"):
        write_stage(folder / name / "ppo", arm="x", seed=1, steps=1, puzzles=2)
    return folder


@pytest.fixture
def runs(two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two runs, one to be harmed, in the working directory."""
    shutil.copytree(two, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    yield Path("runs")
    Path("runs/bad/ppo").chmod(0o755)


@pytest.mark.parametrize("harm", [*list(HARMS)[:-1], ROOTLESS])
def test_the_other_runs_are_there(runs: Path, capsys, harm: str):
    HARMS[harm](runs / "bad")
    lines = {line.name: line.state for line in list_runs(runs, 0.0)}
    assert lines["good"] == "finished"
    assert main(["report", "runs/good", "runs/bad", "--output", "report.md", "--format", "md"]) == 0
    if harm in UNREADABLE:
        assert lines["bad"] == "unreadable"
        assert "bad, because a file is unreadable" in Path("report.md").read_text()
        assert main(["report", "runs/bad", "--output", "report.html"]) == 2
    assert main(["view", "runs", "--export", "view.html"]) == 0
    assert main(["runs", "runs"]) == 0
    told = capsys.readouterr().err
    assert "Traceback" not in told
    for part in ("skipped the run runs/bad, because a file is", "cannot read the run runs/bad: "):
        assert part in told or harm not in UNREADABLE
    index = EpisodeIndex(runs, cache=Path("index.sqlite"))
    index.update()
    assert index.page({"arm": "good"})["total"] > 0

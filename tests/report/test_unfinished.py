"""Comparisons that were killed: no result is reported before the last method has finished."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.killed import is_finished, kill_comparison, steps_of

from spa.cli import execute
from spa.run.estimate import write_failures, write_plan
from spa.run.files import read_object
from spa_report.content import build
from spa_report.overview import list_runs
from spa_report.progress import in_progress
from spa_report.reading import open_run
from spa_report.results import describe_progress
from spa_report.text import markdown
from spa_report.viewer import Library


@pytest.fixture(scope="module")
def both_in_ppo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed when both methods had made two of 36 PPO steps; validated at step 0."""
    run = tmp_path_factory.mktemp("both") / "run"
    return kill_comparison(
        run,
        "trainer.total_training_steps=36",
        "trainer.test_freq=-1",  # vanilla may be far ahead
        "sft.trainer.total_training_steps=2",
        when=lambda: min(steps_of(run / arm / "ppo") for arm in ("spa", "vanilla")) >= 3,
    )


@pytest.fixture(scope="module")
def one_finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed when vanilla had finished and SPA was in fine-tuning."""
    run = tmp_path_factory.mktemp("one") / "run"
    return kill_comparison(
        run,
        "trainer.total_training_steps=1",
        "sft.trainer.total_training_steps=100000",
        when=lambda: is_finished(run / "vanilla" / "ppo") and steps_of(run / "spa" / "sft") > 0,
    )


def last_step(run: Path, arm: str, stage: str = "ppo") -> int:
    return max(next(s for s in open_run(run).stages if (s.arm, s.name) == (arm, stage)).metrics)


def test_an_unfinished_comparison_has_no_winner(both_in_ppo: Path, capsys, tmp_path: Path):
    report = build([open_run(both_in_ppo)])
    far = {arm: last_step(both_in_ppo, arm) for arm in ("spa", "vanilla")}
    # as many episodes as SPA in all
    said = {f"SPA {far['spa']} of 36", f"vanilla {far['vanilla']} of 37"}
    assert set(report.verdict.removeprefix("In progress: ").removesuffix(".").split(", ")) == said
    assert not any(
        re.search("is better than|No difference found|95 %", text) for text in report.certainty
    )
    assert execute(["report", str(both_in_ppo), "--output", str(tmp_path / "report.html")]) == 0
    assert capsys.readouterr().out.startswith("In progress: ")


def test_step_0_is_before_and_never_after(both_in_ppo: Path, tmp_path: Path):
    report = build([open_run(both_in_ppo)])
    assert [row.label for row in report.rows] == ["SPA", "vanilla"]
    for row in report.rows:
        assert row.before is not None and row.before_interval is not None
        assert (row.after, row.interval, row.after_k) == (None, None, None)
    text = markdown(report)
    assert "Pass@1 so far" in text and "after PPO" not in text
    execute(["report", str(both_in_ppo), "--output", str(tmp_path / "report.html")])
    page = (tmp_path / "report.html").read_text()
    assert "Pass@1 so far" in page and "Pass@1 after PPO" not in page
    (line,) = list_runs(both_in_ppo.parent, 0.0)
    assert re.fullmatch(r"spa \d+ % before PPO, vanilla \d+ % before PPO", line.result)
    assert {method.label for method in line.methods if method.before_interval} == {"SPA", "vanilla"}
    assert not any(method.interval for method in line.methods)


def test_columns_name_the_step_that_they_show(both_in_ppo: Path, tmp_path: Path):
    """A method that is still at step 0 has no result, and leaves that of the other alone."""
    run = tmp_path / "runs" / "run"
    shutil.copytree(both_in_ppo, run, symlinks=True)
    ppo = run / "vanilla" / "ppo"
    shutil.copy(
        ppo / "trajectories" / "val-000000.jsonl", ppo / "trajectories" / "val-000001.jsonl"
    )
    metrics = ppo / "metrics.jsonl"
    step_0 = json.loads(metrics.read_text().splitlines()[0])
    with metrics.open("a") as file:
        file.write(json.dumps(step_0 | {"step": 1}) + "\n")
    report = build([open_run(run)])
    assert "Pass@1 at step 1" in markdown(report) and "after PPO" not in markdown(report)
    after = {row.label: row.after for row in report.rows}
    assert after["SPA"] is None and after["vanilla"] is not None
    (line,) = list_runs(run.parent, 0.0)
    assert re.fullmatch(r"at step 1: spa \d+ % before PPO, vanilla \d+ → \d+ %", line.result)


def test_one_finished_method_does_not_finish_a_comparison(one_finished: Path):
    (line,) = list_runs(one_finished.parent, 0.0)
    step = last_step(one_finished, "spa", "sft")
    assert line.state == f"stopped: spa sft step {step}"
    assert build([open_run(one_finished)]).verdict == f"In progress: SPA sft step {step}."


def test_stages_that_were_asked_for_alone_are_finished_without_ppo(
    one_finished: Path, tmp_path: Path
):
    """`spa run --stages selfplay,sft` locks the folders of its stages and not that of the run."""
    run = tmp_path / "runs" / "run"
    stage = run / "sft"
    shutil.copytree(one_finished / "spa" / "sft", stage)
    assert in_progress(open_run(run)) and in_progress(open_run(stage))
    manifest = read_object(stage / "manifest.json")
    (stage / "manifest.json").write_text(json.dumps(manifest | {"result": "global_step_9"}))
    (line,) = list_runs(run.parent, 0.0)
    assert line.state == "finished" and not in_progress(open_run(stage))
    assert build([open_run(run)]).verdict.startswith("There is no result yet")
    # All stages were asked for, and PPO has not begun.
    (run / ".lock").touch()
    (line,) = list_runs(run.parent, 0.0)
    assert line.state.startswith("stopped: sft step")


def test_a_stage_with_a_damaged_manifest_is_not_finished(one_finished: Path, tmp_path: Path):
    ppo = tmp_path / "runs" / "run" / "ppo"
    shutil.copytree(one_finished / "vanilla" / "ppo", ppo)
    (line,) = list_runs(tmp_path / "runs", 0.0)
    assert line.state == "finished"
    (ppo / "manifest.json").write_text("{")
    (line,) = list_runs(tmp_path / "runs", 0.0)
    assert re.fullmatch(r"stopped: ppo step (\d+) of \1", line.state)


def test_a_comparison_without_its_summary_is_in_progress(one_finished: Path, tmp_path: Path):
    """Killed before SPA had begun anything."""
    (tmp_path / "run").mkdir()
    for name in (".lock", "vanilla"):
        (tmp_path / "run" / name).symlink_to(one_finished / name)
    (line,) = list_runs(tmp_path, 0.0)
    assert line.state == "stopped: all stages are finished, but summary.json is missing"
    assert (
        build([open_run(tmp_path / "run")]).verdict
        == "In progress: run has finished all stages, but summary.json is missing."
    )
    assert in_progress(open_run(tmp_path / "run"))


def test_a_comparison_says_which_stage_failed(one_finished: Path, tmp_path: Path):
    (tmp_path / "run").mkdir()
    for name in (".lock", "vanilla"):
        (tmp_path / "run" / name).symlink_to(one_finished / name)
    methods: dict[str, Any] = {"vanilla": []}
    write_plan(tmp_path / "run", {"workers": 1, "methods": methods})
    library = Library(tmp_path / "run", caches=tmp_path)
    before = library.report(["run"])
    assert before is not None and "Failed" not in before.verdict
    write_failures(tmp_path / "run", ["spa self-play: too few examples\nmore of it"])
    (line,) = list_runs(tmp_path, 0.0)
    assert line.state == "stopped: failed: spa self-play: too few examples"
    after = library.report(["run"])
    assert after is not None and after.verdict.startswith("Failed: spa self-play: too few")
    run = open_run(tmp_path / "run")
    assert describe_progress([run]) == "Failed: spa self-play: too few examples."
    # The next command begins anew.
    write_plan(tmp_path / "run", {"workers": 1, "methods": methods})
    (line,) = list_runs(tmp_path, 0.0)
    assert "failed" not in line.state

"""A run that is under way: what it does now, what comes next, and its curves from the first step."""

import json
from pathlib import Path

import pytest
from report_fixtures import write_sft, write_stage

from spa.run.announce import StagePlan, save_plan
from spa.run.lock import run_lock
from spa.run.manifest import MANIFEST
from spa_report.content import build
from spa_report.overview import run_row
from spa_report.progress import live
from spa_report.reading import open_run
from spa_report.results import colors_of, list_methods

NAMES = (
    ("self-play 1", "round_1/data"),
    ("SFT 1", "round_1/sft"),
    ("self-play 2", "data"),
    ("SFT 2", "sft"),
    ("PPO", "ppo"),
)
COMMIT = "0123456789abcdef"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A comparison: SPA has done self-play and is in the first SFT, and vanilla is in PPO."""
    root = tmp_path / "runs" / "run"
    spa = [StagePlan(name, root / "spa" / folder, "run", expected=600.0) for name, folder in NAMES]
    vanilla = [StagePlan("PPO", root / "vanilla" / "ppo", "run", expected=600.0)]
    save_plan(root, {"spa": spa, "vanilla": vanilla}, workers=2)
    write_sft(root / "spa" / "round_1" / "sft", seed=1)
    write_stage(root / "spa" / "round_1" / "data", arm="spa", seed=1, steps=1, puzzles=1)
    (root / "spa" / "round_1" / "data" / MANIFEST).write_text('{"result": "."}')
    write_stage(root / "vanilla" / "ppo", arm="vanilla", seed=1, steps=6, puzzles=2)
    metrics = root / "vanilla" / "ppo" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:4]))
    (root / "vanilla" / "ppo" / MANIFEST).write_text(json.dumps({"commit": COMMIT}))
    return root


def test_it_says_what_runs_now_what_comes_next_and_the_time_of_all(run: Path):
    assert live(open_run(run), 0.0) is None  # no process holds it
    row = run_row(run, 0.0)
    assert row is not None and row.commit == COMMIT
    with run_lock(run), run_lock(run / "vanilla" / "ppo"), run_lock(run / "spa/round_1/sft"):
        now = live(open_run(run), 0.0)
        row = run_row(run, 0.0)
    assert now is not None and row is not None and row.left == now.left
    assert now.left.endswith("left in all") and " on " in now.load
    spa, vanilla = now.stages
    assert (spa.arm, spa.stage, spa.steps) == ("spa", "SFT 1", "30")
    assert spa.later == "self-play 2, SFT 2, PPO" and spa.memory.endswith(" GB")
    assert (vanilla.stage, vanilla.steps, vanilla.later) == ("PPO", "6 of 6", "")


def test_a_damaged_plan_hides_the_estimate_alone(run: Path):
    for content in ("{", "[]", "{}", '{"workers": 1, "methods": {"a": [1]}}'):
        (run / "plan.json").write_text(content)
        with run_lock(run):
            row = run_row(run, 0.0)
        assert row is not None and row.left == "" and row.state.startswith("running")


def test_every_method_shows_its_configuration_from_its_first_stage(run: Path):
    shuffled = run / "spa_shuffled" / "data"
    write_stage(shuffled, arm="spa_shuffled", seed=1, steps=1, puzzles=1)
    names = [name for name, _ in build([open_run(run)]).configs]
    assert [name for name in names if name.endswith(", data")] == [
        "SPA, shuffled next states, data"
    ]
    assert any(name.startswith("SPA, ") for name in names)
    assert any(name.endswith(", ppo") for name in names)


def test_the_list_of_runs_names_the_stage_and_its_last_step(tmp_path: Path):
    write_sft(tmp_path / "run" / "sft", seed=1)
    metrics = tmp_path / "run" / "sft" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:18]))
    with run_lock(tmp_path / "run"):
        row = run_row(tmp_path / "run", 0.0)
    assert row is not None and row.state == "running: sft step 18"


def test_curves_are_drawn_while_the_run_is_under_way(run: Path):
    sections = build([open_run(run)]).sections
    charts = {chart.title: chart for part in sections for chart in part.charts}
    predictions = "Exact predictions during fine-tuning"
    lengths = {"Fine-tuning loss": 30, "Validation loss of fine-tuning": 3, predictions: 3}
    for title, points in lengths.items():
        (line,) = charts[title].series
        assert (line.label, len(line.points)) == ("SPA", points)
    # Pass@1 has one validation, at step 0; training is at step 3 of 6.
    assert len(charts["Pass@1"].series[0].points) == 1
    assert {charts[title].end for title in ("Pass@1", "Success while training")} == {3}
    for title in ("Memory", "Load"):
        assert {line.label for line in charts[title].series} == {"SPA", "vanilla"}
    # The steps of the second round follow those of the first.
    write_sft(run / "spa" / "sft", seed=2)
    charts = {
        chart.title: chart for part in build([open_run(run)]).sections for chart in part.charts
    }
    (line,) = charts[predictions].series
    assert [step for step, _ in line.points] == [10, 20, 30, 40, 50, 60]
    assert charts[predictions].end == 60


def test_predictions_of_self_play_are_drawn_from_its_first_batch(tmp_path: Path):
    for folder, batches in (("round_1/data", (1, 2)), ("data", (3, 4))):
        stage = tmp_path / "run" / "spa" / folder
        stage.mkdir(parents=True)
        rows = [{"step": step, "selfplay/wm/prediction_em": step / 10} for step in batches]
        (stage / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        write_sft(tmp_path / "run" / "spa" / folder.replace("data", "sft"), seed=1)
    charts = {
        chart.title: chart
        for part in build([open_run(tmp_path / "run")]).sections
        for chart in part.charts
    }
    (line,) = charts["Exact predictions during self-play"].series
    # The batches of the second round follow those of the first by their numbers.
    assert line.points == ((1.0, 0.1), (2.0, 0.2), (3.0, 0.3), (4.0, 0.4))


def test_a_method_keeps_its_colour(tmp_path: Path, run: Path):
    """Vanilla had SPA's colour until SPA was in SFT."""
    early = tmp_path / "early"
    write_stage(early / "vanilla" / "ppo", arm="vanilla", seed=1, steps=1, puzzles=1)
    (before,) = list_methods([open_run(early)])
    write_sft(early / "spa" / "sft", seed=1)
    write_stage(early / "unknown" / "ppo", arm="x", seed=1, steps=1, puzzles=1)
    after = {method.arm: method.color for method in list_methods([open_run(early)])}
    assert after["vanilla"] == before.color and len(set(after.values())) == 3
    # Methods of a sweep have no colours of their own: the plan numbers them.
    sweep = tmp_path / "sweep"
    plan = {name: [StagePlan("PPO", sweep / name / "ppo", "run")] for name in ("lr=2", "lr=1")}
    save_plan(sweep, plan, workers=1)
    write_stage(sweep / "lr=1" / "ppo", arm="x", seed=1, steps=1, puzzles=1)
    (alone,) = list_methods([open_run(sweep)])
    write_stage(sweep / "lr=2" / "ppo", arm="x", seed=1, steps=1, puzzles=1)
    colors = {method.arm: method.color for method in list_methods([open_run(sweep)])}
    assert colors["lr=1"] == alone.color and colors["lr=2"] != alone.color
    # A later command with other methods keeps the numbers.
    save_plan(sweep, {"lr=0": []}, workers=1)
    assert colors_of([open_run(sweep)])["sweep", "lr=1"] == alone.color

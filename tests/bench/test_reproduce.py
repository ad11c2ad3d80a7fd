"""Tables of the paper: plans, verdicts by hand, the results file and the page."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from helpers.grids import in_this_process
from helpers.stages import mark_finished

from spa import cli
from spa.errors import ConfigError, ModelError, TrainingError
from spa.recipes.token_budget import shape_of, with_token_budgets
from spa_bench.paper import reproduce
from spa_bench.paper.page import write_page
from spa_bench.paper.paper import NAMES, SCALES, Finding, paper_table
from spa_bench.paper.verdicts import interquartile_means, judge, mean_curve, rates
from spa_estimates.fit import GB, gpu_memory
from spa_estimates.hours import stage_times
from spa_estimates.speed import card_for, gpus
from spa_sweeps.grid import StageJob
from spa_sweeps.methods import METHODS
from spa_sweeps.results import SeedResult, difference


def seed_result(
    seed: int, successes: Sequence[int], before: Sequence[int] | None = None
) -> SeedResult:
    """Puzzles with 8 attempts each."""
    won = {f"t/{1000 * seed + i}": (8, c) for i, c in enumerate(successes)}
    old = {f"t/{1000 * seed + i}": (8, c) for i, c in enumerate(before or [4] * len(successes))}
    share = sum(successes) / 8 / len(successes)
    curve = {0: (0.5, 1.0), 10: (share, 1.0)}
    return SeedResult(seed=seed, moments={"before": old, "after": won}, curve=curve, world_model={})  # pyright: ignore[reportArgumentType]


HIGH = [seed_result(seed, [7, 8, 6, 8, 7, 8]) for seed in range(3)]
LOW = [seed_result(seed, [1, 0, 2, 1, 0, 1]) for seed in range(3)]
LIKE_LOW = [seed_result(seed, [0, 1, 1, 2, 1, 0]) for seed in range(3)]

MIXED = [seed_result(seed, [8, 8, 0, 8, 8, 8], [8, 0, 8, 8, 8, 8]) for seed in range(3)]


def verdict(kind: str, first: str, second: str = "") -> dict:
    found = {"high": HIGH, "low": LOW, "like_low": LIKE_LOW, "mixed": MIXED}
    return judge(Finding(text="t", environment="e", first=first, second=second, kind=kind), found)  # type: ignore[arg-type]


def test_rates_and_differences_by_hand():
    assert rates(HIGH[:1], "after")["pass@1"]["mean"] == pytest.approx(44 / 48, abs=1e-6)
    assert rates(LOW[:1], "after")["pass@8"]["mean"] == pytest.approx(4 / 6, abs=1e-6)
    gap = difference(HIGH, LOW)
    assert (
        gap is not None and gap.mean == pytest.approx((44 - 5) / 48) and gap.n == 18 and gap.low > 0
    )


def test_seeds_are_paired_by_number_and_missing_ones_left_out():
    gap = difference(HIGH, LOW[1:])
    assert gap is not None and gap.n == 12
    assert difference(HIGH[:1], LOW[1:]) is None
    assert difference([], []) is None


@pytest.mark.parametrize(
    ("kind", "first", "second", "expected"),
    [
        ("better", "high", "low", "reproduced"),
        ("better", "low", "high", "contradicted"),
        ("better", "low", "like_low", "no difference found"),
        ("better", "high", "missing", "not run"),
        ("no_gain", "low", "high", "reproduced"),
        # equal results, but of 18 puzzles only
        ("no_gain", "low", "low", "undecided"),
        # no difference, but up to 6 points are possible
        ("no_gain", "low", "like_low", "undecided"),
        ("no_gain", "high", "low", "contradicted"),
        ("keeps", "high", "", "undecided"),
        ("keeps", "low", "", "contradicted"),
        ("keeps", "mixed", "", "undecided"),
    ],
)
def test_verdicts(kind, first, second, expected):
    assert verdict(kind, first, second)["verdict"] == expected


def test_a_verdict_counts_the_seeds_that_it_compares():
    finding = Finding(text="t", environment="e", first="a", second="b")
    assert judge(finding, {"a": HIGH[:2], "b": LOW[1:]})["seeds"] == 1
    assert verdict("keeps", "high")["seeds"] == 3


def test_curves_keep_the_steps_that_all_seeds_have():
    other = SeedResult(seed=9, moments={}, curve={10: (0.0, 0.0)}, world_model={})
    (row,) = mean_curve([HIGH[0], other])
    assert (
        row["step"] == 10
        and row["pass@1"] == pytest.approx(44 / 96, abs=1e-3)
        and row["low"] == 0.0
    )
    assert mean_curve([]) == []


def test_interquartile_mean_needs_a_method_in_every_environment():
    results = {("a", "high"): HIGH, ("b", "high"): LOW, ("a", "low"): LOW}
    found = interquartile_means(results)
    assert list(found) == ["high"] and found["high"]["mean"] == pytest.approx(
        (44 + 5) / 96, abs=0.01
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_every_table_has_known_methods_and_findings_about_its_rows(name, scale):
    table = paper_table(name, scale)
    assert all(
        row.method in METHODS and row.environment in SCALES[scale].settings
        for row in table.experiments
    )
    rows = {(row.environment, row.method) for row in table.experiments}
    for finding in table.findings:
        assert (finding.environment, finding.first) in rows
        assert finding.kind == "keeps" or (finding.environment, finding.second) in rows


def test_only_takes_an_id_or_a_part_of_one(tmp_path):
    everything = reproduce.make_plan(["main"], "tiny", tmp_path, seeds=1)
    exact = reproduce.make_plan(
        ["main"], "tiny", tmp_path, seeds=1, only=["builtin:tiny/Sudoku/vanilla"]
    )
    part = reproduce.make_plan(["main"], "tiny", tmp_path, seeds=1, only=["Sudoku"])
    assert (len(everything.trainings), len(exact.trainings), len(part.trainings)) == (9, 1, 3)
    with pytest.raises(ConfigError, match="--only Chess matches no experiment"):
        reproduce.make_plan(["main"], "tiny", tmp_path, only=["Chess"])


def finish(stage: StageJob, device: str) -> tuple[int, int]:
    """A stage as its recipe leaves it, with outcomes that depend on what it is."""
    folder = stage.folder
    folder.mkdir(parents=True)
    if stage.stage == "sft":
        gate = {"observation_exact": 0.9, "prediction_exact": 0.5, "entropy": 0.3}
        (folder / "gate.json").write_text(json.dumps(gate))
    if stage.stage == "ppo":
        (folder / "trajectories").mkdir()
        won = 6 if stage.source else 2
        cfg, lines = stage.config, []
        for step in (0, 10, cfg.trainer.total_training_steps):
            rows = [
                {
                    "tag": "t",
                    "puzzle_seed": cfg.seed.val + puzzle,
                    "puzzle_hash": f"{puzzle}",
                    "success": step > 0 and member < won,
                    "stop": "",
                }
                for puzzle in range(6)
                for member in range(8)
            ]
            path = folder / "trajectories" / f"val-{step:06d}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            lines.append({"step": step, "val-env/t/pass@1": won / 8, "val-env/t/pass@8": 1.0})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    mark_finished(folder, stage.fingerprint)
    return 1, 1


def test_results_and_page_of_a_table(tmp_path):
    plan = reproduce.make_plan(["main", "dynamics"], "tiny", tmp_path, seeds=3)
    assert plan.hours(1) > 1
    result = reproduce.run_tables(plan, pool=in_this_process, work=finish)
    plan = reproduce.make_plan(["main", "dynamics"], "tiny", tmp_path, seeds=3)
    assert plan.hours(1) == 0
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(result))
    row = next(
        row
        for row in result["tables"]["main"]["rows"]
        if row["id"] == "builtin:tiny/FrozenLake/spa"
    )
    assert (
        row["after"]["pass@1"] == {"mean": 0.75, "low": 0.574121, "high": 0.925879, "n": 18}
        and row["seeds"] == 3
    )
    assert row["world_model"][0]["prediction_exact"] == 0.5
    assert row["command"] == (
        "spa bench paper main --scale tiny --seeds 3 --only 'builtin:tiny/FrozenLake/spa'"
    )
    verdicts = {
        (f["text"], f["environment"]): f["verdict"] for f in result["tables"]["main"]["findings"]
    }
    assert verdicts["SPA beats state-estimation RL", "Sudoku"] == "reproduced"
    assert verdicts["state-estimation RL beats vanilla RL", "Sudoku"] == "no difference found"
    assert set(result["tables"]["main"]["interquartile_mean"]["builtin:tiny"]) == {
        "vanilla_grid",
        "vanilla",
        "spa",
    }
    page = tmp_path / "docs" / "results.md"
    notes = {
        "state-estimation RL beats vanilla RL": "Too small.",
        "SPA beats state-estimation RL (Sudoku)": "Too hard.",
    }
    write_page(result, page, notes=notes)
    text = page.read_text()
    assert f"--scale tiny --seeds 3 --root {tmp_path} --page {page}`" in text
    assert "75.0 [75.0, 75.0]" in text and row["command"] in text
    assert "over Sokoban, FrozenLake, Sudoku and seeds" in text and "`vanilla` (plain PPO" in text
    assert (text.count(" Too small. |"), text.count(" Too hard. |")) == (3, 1)
    pictures = list((tmp_path / "docs" / "images").iterdir())
    assert pictures and all(f"images/{picture.name}" in text for picture in pictures)
    for picture in pictures:
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_without_training_nothing_is_measured_either(tmp_path, monkeypatch):
    monkeypatch.setattr(
        reproduce,
        "measure_perplexity",
        lambda *args, **settings: pytest.fail("it was measured"),
    )
    assert (
        cli.main(
            [
                "bench",
                "paper",
                "perplexity",
                "--scale",
                "tiny",
                "--no-training",
                "--root",
                str(tmp_path),
            ]
        )
        == 0
    )
    assert json.loads((tmp_path / "results.json").read_text())["perplexity"] == {}


def test_a_failure_leaves_results_and_page_of_the_rest(tmp_path):
    def work(stage: StageJob, device: str) -> tuple[int, int]:
        if stage.source:
            raise ModelError("out of luck")
        return finish(stage, device)

    plan = reproduce.make_plan(["dynamics"], "tiny", tmp_path, seeds=1)
    with pytest.raises(TrainingError, match="out of luck"):
        reproduce.run_tables(plan, page=tmp_path / "page.md", pool=in_this_process, work=work)
    rows = json.loads((tmp_path / "results.json").read_text())["tables"]["dynamics"]["rows"]
    assert {row["method"]: row["seeds"] for row in rows} == {
        "vanilla_grid": 1,
        "vanilla": 1,
        "spa": 0,
    }
    assert (
        "These experiments were not run: builtin:tiny/FrozenLake/spa."
        in (tmp_path / "page.md").read_text()
    )


def test_stages_of_a_training_take_the_sum_of_their_hours(capsys, tmp_path, monkeypatch):
    """Self-play, SFT and PPO of one seed are never side by side, those of several seeds are."""
    monkeypatch.chdir(tmp_path)
    each = {"selfplay": 0.5, "sft": 1.0, "ppo": 2.0}
    monkeypatch.setitem(SCALES, "full", replace(SCALES["full"], hours=each))
    # 3.5 hours a seed. Two at a time: seeds 0 and 1 until 3.5, then seed 2 alone until 7.
    for seeds, devices, hours in ((1, 1, 3.5), (1, 4, 3.5), (3, 1, 10.5), (3, 2, 7), (3, 3, 3.5)):
        plan = reproduce.make_plan(
            ["sft_epochs"], "full", tmp_path, seeds=seeds, only=["sft_epochs_5"]
        )
        assert plan.hours(devices) == pytest.approx(hours)
    # Both methods share self-play: it ends at 0.5. Then SFT until 1.5, and PPO until 3.5, each twice.
    plan = reproduce.make_plan(
        ["sft_epochs"], "full", tmp_path, seeds=1, only=["sft_epochs_4", "sft_epochs_5"]
    )
    assert plan.hours(2) == pytest.approx(3.5)
    args = ["bench", "paper", "sft_epochs", "--scale", "full", "--only", "sft_epochs_5"]
    assert cli.main([*args, "--parallel", "4", "--seeds", "1", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "about 3.5 hours with 4 at a time (measured on one GPU each)" in out
    told = "This machine has no GPU. The estimate assumes 4 of them (--parallel)." in out
    assert told is not torch.cuda.is_available()
    assert ("spa doctor --fit CONFIG --gpus 4" in out) is told


def test_hours_of_the_full_scale_are_those_of_doctor_fit(tmp_path):
    """One estimator: the three stages in a row take what `spa doctor --fit` says of the same run."""
    plan = reproduce.make_plan(["sft_epochs"], "full", tmp_path, seeds=1, only=["sft_epochs_5"])
    ((training,),) = plan.trainings.values()
    gb, _, name = gpu_memory()
    cfg = with_token_budgets(training.ppo, gb * GB)
    machine = gpus(card_for(gb, name), 1, vllm=True)
    times = stage_times(cfg, shape_of(cfg.model_path), machine)
    assert plan.hours(1) == pytest.approx(sum(time.seconds or 0 for time in times) / 3600, rel=0.02)

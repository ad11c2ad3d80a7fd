"""The stages one after the other, the gate between them, and the comparison of methods."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.runs import small_config

from spa.config.schema import Config
from spa.errors import ModelError
from spa.identity import identity_of
from spa.models.load import load_policy
from spa.recipes import compare, pipeline
from spa.recipes.arms import arm_config
from spa.recipes.summary import summarise
from spa.recipes.table import print_table

STEPS = ("trainer.total_training_steps=1", "sft.trainer.total_training_steps=2", "sft.trainer.eval_episodes=4")


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(base, tmp_path_factory) -> Path:
    """A run of all three stages."""
    root = tmp_path_factory.mktemp("pipeline")
    assert pipeline.run(small_config(base, root, *STEPS)) == root / "ppo" / "global_step_1"
    return root


def test_all_three_stages_leave_what_the_next_one_needs(finished):
    assert (finished / "data" / "wm_train.parquet").is_file()
    assert (finished / "data" / "wm_val.parquet").is_file()
    load_policy(str(finished / "sft" / "global_step_2"))
    load_policy(str(finished / "ppo" / "global_step_1"))
    assert json.loads((finished / "sft" / "gate.json").read_text())["prediction_exact"] == 0
    for stage in ("data", "sft", "ppo"):
        assert {"config.yaml", "metrics.jsonl", "timings.jsonl", "done.json"} <= {
            path.name for path in (finished / stage).iterdir()
        }


def test_what_is_done_is_not_done_again(base, finished):
    files = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file() and path.name != ".lock"}
    pipeline.run(small_config(base, finished, *STEPS))
    assert {
        path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file() and path.name != ".lock"
    } == files


def test_stages_lie_where_the_configuration_says(base, tmp_path):
    places = [f"generate.output_dir={tmp_path / 'a'}", f"sft.trainer.default_local_dir={tmp_path / 'b'}"]
    cfg = small_config(base, tmp_path / "run", *STEPS, *places, f"trainer.default_local_dir={tmp_path / 'c'}")
    assert pipeline.run(cfg) == tmp_path / "c" / "global_step_1"
    assert (tmp_path / "a" / "wm_train.parquet").is_file() and (tmp_path / "b" / "global_step_2").is_dir()
    assert not (tmp_path / "run").exists()


def test_running_anew_keeps_the_old_stages(base, finished, tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.generate, "main", stop)
    for stage in ("data", "sft", "ppo"):
        (tmp_path / stage).mkdir()
        (tmp_path / stage / "kept").touch()
    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(small_config(base, tmp_path, *STEPS), generate_data=True)
        assert (tmp_path / "data.previous-1" / "kept").is_file()
        assert not (tmp_path / "data").exists()
        (tmp_path / "data").mkdir()
        assert len(list(tmp_path.glob("data.previous-*"))) == number


def test_ppo_starts_from_the_fine_tuned_checkpoint_that_is_named(base, finished, tmp_path, monkeypatch):
    starts = []

    def started(cfg, *, model_path, directory, identity):
        starts.append(model_path)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.ppo, "main", started)
    (tmp_path / "sft").symlink_to(finished / "sft")
    (tmp_path / "data").symlink_to(finished / "data")
    for ckpt, wanted in (("last", False), ("2", False), ("last", None)):
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(small_config(base, tmp_path, *STEPS), ckpt=ckpt, generate_data=wanted)
    assert [Path(start).resolve() for start in starts] == [finished / "sft" / "global_step_2"] * 3
    with pytest.raises(ModelError, match="steps found: 2"):
        pipeline.run(small_config(base, tmp_path, *STEPS), ckpt="7", generate_data=False)


def test_a_stage_that_fails_is_not_marked_as_done(tmp_path):
    def work() -> Path:
        tmp_path.joinpath("stage").mkdir(exist_ok=True)
        raise ModelError("no")

    with pytest.raises(ModelError):
        pipeline.stage(tmp_path / "stage", work, identity=identity_of(Config(), "ppo"))
    assert not (tmp_path / "stage" / pipeline.DONE).exists()


GATE = ("gate.enable=true", "gate.max_extra_rounds=2", "gate.extra_steps=1", "gate.entropy_min=0")
OPEN = ("gate.format_min=0", "gate.observation_exact_min=0", "gate.changed_f1_min=0", "gate.prediction_exact_min=0")


def test_a_weak_world_model_gets_more_training_and_then_ppo_goes_on(base, finished, tmp_path):
    cfg = small_config(base, tmp_path, *STEPS, *GATE, "gate.prediction_exact_min=1.0")
    last = pipeline.world_model(cfg, finished / "data", tmp_path / "sft")
    assert last == tmp_path / "sft" / "extra_2" / "global_step_1"
    gate = json.loads((tmp_path / "sft" / "gate.json").read_text())
    assert (gate["passed"], gate["rounds"]) == (False, 2)
    assert gate["diagnosis"] == "cannot_write"


def test_a_world_model_that_is_good_enough_is_left_alone(base, finished, tmp_path):
    cfg = small_config(base, tmp_path, *STEPS, *GATE, *OPEN)
    assert pipeline.world_model(cfg, finished / "data", tmp_path / "sft") == tmp_path / "sft" / "global_step_2"
    assert json.loads((tmp_path / "sft" / "gate.json").read_text())["passed"]


@pytest.fixture(scope="module")
def compared(base, tmp_path_factory) -> tuple[Path, dict]:
    """Four arms, each in this process, and their summary."""
    root = tmp_path_factory.mktemp("compare")
    cfg = compare.controls(small_config(base, root, *STEPS, "generate.num_batches=1"))
    for job in compare.plan_jobs(cfg, root):
        compare.run_job(job)
    summary = summarise(cfg, root, seconds=1.0, peak_bytes=2**30)
    return root, json.loads(json.dumps(summary))


def test_every_arm_plays_as_many_episodes_and_the_same_puzzles(compared):
    root, summary = compared
    assert set(summary["methods"]) == {"vanilla", "vanilla_wm", "spa", "spa_shuffled"}
    assert {arm: played["ppo"] for arm, played in summary["episodes"].items()} == dict.fromkeys(summary["methods"], 12)
    assert {arm: played["self_play"] for arm, played in summary["episodes"].items()} == {
        "vanilla": 0,
        "vanilla_wm": 0,
        "spa": 12,
        "spa_shuffled": 12,
    }
    seen = {}
    for arm in summary["methods"]:
        for step in (0, 1):
            path = root / arm / "ppo" / "trajectories" / f"val-{step:06d}.jsonl"
            seen[arm, step] = [(row["puzzle_hash"], row["turns"][0]["state"]) for row in lines(path)]
        # Arms without self-play go on until they have played as many episodes in all.
        steps = [row["step"] for row in lines(root / arm / "ppo" / "metrics.jsonl")]
        assert steps == ([0, 1, 2] if arm.startswith("vanilla") else [0, 1])
    assert len({json.dumps(value) for value in seen.values()}) == 1


def test_the_arms_differ_in_what_they_are_meant_to_differ_in(compared):
    root, _ = compared
    modes = {
        arm: lines(root / arm / "ppo" / "trajectories" / "val-000000.jsonl")[0]["mode"]
        for arm in ("vanilla", "vanilla_wm", "spa", "spa_shuffled")
    }
    assert modes == {"vanilla": "base", **dict.fromkeys(("vanilla_wm", "spa", "spa_shuffled"), "add_worldmodel")}
    true = (root / "spa" / "data" / "wm_train.parquet").read_bytes()
    assert (root / "spa_shuffled" / "data" / "wm_train.parquet").read_bytes() != true


def test_the_summary_holds_what_its_readers_need(compared):
    _, summary = compared
    for moments in summary["methods"].values():
        assert {"before", "after"} <= moments.keys()
        assert all(0 <= moment["pass@1"] <= 1 for moment in moments.values())
    assert {"observation_exact", "prediction_exact"} <= summary["world_model"].keys()
    for gap in summary["difference"].values():
        assert gap["low"] <= gap["mean"] <= gap["high"]
        assert math.isfinite(gap["mean"])
    assert summary["seconds"]["total"] == 1.0
    assert summary["seconds"]["spa/sft"] > 0
    assert summary["peak_memory_gb"] == 1.0
    assert {"python", "torch", "transformers"} <= summary["versions"].keys()


def test_the_table_names_every_method(compared, capsys):
    print_table(compared[1])
    shown = capsys.readouterr().out
    for arm in compared[1]["methods"]:
        assert arm in shown


def test_seeds_differ_in_everything_that_is_drawn_and_in_nothing_else(base, tmp_path):
    cfg = replace(small_config(base, tmp_path), compare=replace(small_config(base, tmp_path).compare, seeds=3))
    jobs = compare.plan_jobs(cfg, tmp_path)
    assert [(job.seed, job.arm) for job in jobs if job.seed == 1] == [(1, "data"), (1, "spa"), (1, "vanilla")]
    configs = [job.config for job in jobs if job.arm == "spa"]
    assert len({config.seed.train for config in configs}) == len({config.seed.val for config in configs}) == 3
    assert len({config.sft.trainer.seed for config in configs}) == 3
    for config in configs:
        same = replace(
            config,
            seed=cfg.seed,
            trainer=configs[0].trainer,
            sft=replace(config.sft, trainer=configs[0].sft.trainer),
        )
        assert same == replace(configs[0], seed=cfg.seed)


def test_data_is_made_before_the_arms_that_need_it(base, tmp_path):
    cfg = compare.controls(small_config(base, tmp_path))
    jobs = compare.plan_jobs(cfg, tmp_path)
    waiting, unfinished = list(jobs), {job.seed for job in jobs if job.arm == "data"}
    ready = [job.arm for job in waiting if compare._ready(job, unfinished)]
    assert ready == ["data", "vanilla", "vanilla_wm"]
    assert [job.arm for job in waiting if compare._ready(job, set())] == [job.arm for job in jobs]


def test_a_baseline_is_the_arm_of_the_comparison(base, tmp_path):
    cfg = small_config(base, tmp_path)
    assert arm_config(cfg, "state_estimation", tmp_path).state_text == "grid_and_coords"
    assert arm_config(cfg, "vanilla_grid", tmp_path).state_text == "grid"
    assert arm_config(cfg, "vanilla", tmp_path).state_text == cfg.state_text

"""The stages one after the other, and the gate between them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.runs import small_config

from spa.errors import ModelError
from spa.models.load import load_policy
from spa.recipes import pipeline, selfplay
from spa.run.manifest import Manifest

STEPS = (
    "trainer.total_training_steps=1",
    "sft.trainer.total_training_steps=2",
    "sft.trainer.eval_episodes=4",
)


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
        assert {"config.yaml", "metrics.jsonl", "timings.jsonl", "manifest.json"} <= {
            path.name for path in (finished / stage).iterdir()
        }


@pytest.mark.parametrize("harm", ["torn", "gone", "record"])
def test_episodes_that_were_lost_before_data_are_made_of_them_are_played_again(
    base, finished, tmp_path, harm, caplog
):
    data = tmp_path / "data"
    shutil.copytree(finished / "data", data)
    known = Manifest.read(data)
    assert known is not None
    kept = {
        name: size
        for name, size in known.sizes.items()
        if harm != "record" and name.startswith("trajectories")
    }
    replace(known, result=None, sizes=kept).write(data)  # as it was before the data set was written
    (data / "wm_train.parquet").unlink()
    path = data / "trajectories/generate-000002.jsonl"
    if harm == "torn":
        path.write_text(path.read_text()[:-100])
    elif harm == "gone":
        path.unlink()
    selfplay.run_self_play(small_config(base, tmp_path, *STEPS))
    for name in (
        "wm_train.parquet",
        "wm_val.parquet",
        "metrics.jsonl",
        "trajectories/generate-000002.jsonl",
    ):
        assert (data / name).read_bytes() == (finished / "data" / name).read_bytes()
    assert ("the stage plays this batch again" in caplog.text) == (harm != "record")


def test_stages_lie_where_the_configuration_says(base, tmp_path):
    places = [
        f"generate.output_dir={tmp_path / 'a'}",
        f"sft.trainer.default_local_dir={tmp_path / 'b'}",
    ]
    cfg = small_config(
        base, tmp_path / "run", *STEPS, *places, f"trainer.default_local_dir={tmp_path / 'c'}"
    )
    assert pipeline.run(cfg) == tmp_path / "c" / "global_step_1"
    assert (tmp_path / "a" / "wm_train.parquet").is_file() and (
        tmp_path / "b" / "global_step_2"
    ).is_dir()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["plan.json"]


def test_running_anew_keeps_the_old_stages(base, finished, tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.selfplay, "run_self_play", stop)
    for number in (1, 2):
        for stage in ("data", "sft", "ppo"):
            (tmp_path / stage).mkdir(exist_ok=True)
            (tmp_path / stage / "metrics.jsonl").write_text(str(number))
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(small_config(base, tmp_path, *STEPS), generate_data=True)
        for stage in ("data", "sft", "ppo"):
            assert (
                tmp_path / stage / "previous" / str(number) / "metrics.jsonl"
            ).read_text() == str(number)
            assert not (tmp_path / stage / "metrics.jsonl").exists()


def test_ppo_starts_from_the_fine_tuned_checkpoint_that_is_named(
    base, finished, tmp_path, monkeypatch
):
    starts = []

    def started(cfg, *, model_path, directory, fingerprint, alone=True):
        starts.append(model_path)
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.ppo_run, "run_ppo", started)
    (tmp_path / "sft").symlink_to(finished / "sft")
    (tmp_path / "data").symlink_to(finished / "data")
    for ckpt, wanted in (("last", False), ("2", False), ("last", None)):
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(small_config(base, tmp_path, *STEPS), ckpt=ckpt, generate_data=wanted)
    assert [Path(start).resolve() for start in starts] == [finished / "sft" / "global_step_2"] * 3
    with pytest.raises(ModelError, match="steps found: 2"):
        pipeline.run(small_config(base, tmp_path, *STEPS), ckpt="7", generate_data=False)


def test_a_stage_that_fails_is_not_marked_as_done(base, tmp_path, monkeypatch):
    def fails(*args):
        raise ModelError("no")

    monkeypatch.setattr(pipeline.selfplay, "self_play", fails)
    with pytest.raises(ModelError):
        pipeline.run(small_config(base, tmp_path, *STEPS))
    known = Manifest.read(tmp_path / "data")
    assert known is not None and known.result is None


GATE = (
    "gate.enable=true",
    "gate.entropy_min=0",
)


def test_a_weak_world_model_is_judged_and_not_trained_on(base, finished, tmp_path):
    """More steps on as many examples made it worse; the numbers of the verdict are those of the model that is kept."""
    cfg = small_config(base, tmp_path, *STEPS, *GATE, "gate.prediction_exact_min=1.0")
    last = pipeline.run_sft_stage(cfg, finished / "data", tmp_path / "sft")
    assert last == tmp_path / "sft" / "global_step_2"
    gate = json.loads((tmp_path / "sft" / "gate.json").read_text())
    *_, measured = (
        json.loads(line) for line in (tmp_path / "sft" / "metrics.jsonl").read_text().splitlines()
    )
    assert not gate["passed"] and gate["entropy"] == measured["val/sampled_nll"]
    assert not list((tmp_path / "sft").glob("extra_*"))

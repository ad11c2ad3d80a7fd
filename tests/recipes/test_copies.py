"""A run whose machine is gone goes on elsewhere from the copies of its checkpoints and data."""

import shutil
from pathlib import Path

from helpers.runs import SMALL, small_config

from spa.recipes import pipeline, ppo_run, selfplay, sft
from spa.run.copies import copies_of
from spa_sweeps.compare import methods_compared


def test_another_machine_goes_on_from_the_copies(base, tmp_path, monkeypatch):
    places = [tmp_path / "one", tmp_path / "other"]
    url = f"trainer.default_hdfs_dir=file://{tmp_path}/copies/"
    one, other = (small_config(base, place, url, "generate.policy=random") for place in places)
    data = selfplay.run_self_play(one, directory=places[0] / "data")
    pipeline.run_sft_stage(one, directory=places[0] / "sft", data=data)
    copy = tmp_path / "copies" / "sft"
    assert sorted(path.name for path in copy.glob("global_step_*")) == [
        "global_step_2",
        "global_step_4",
    ]
    (copy / "global_step_4" / "complete.json").unlink()
    monkeypatch.delattr(selfplay, "self_play")  # nothing is played again
    again = selfplay.run_self_play(other, directory=places[1] / "data")
    assert (again / "wm_train.parquet").read_bytes() == (data / "wm_train.parquet").read_bytes()
    steps, real = [], sft.update
    monkeypatch.setattr(sft, "update", lambda *args: steps.append(1) or real(*args))
    last = pipeline.run_sft_stage(other, directory=places[1] / "sft", data=again)
    assert len(steps) == 2  # from step 2 on
    for name in (
        "global_step_4/model.safetensors",
        "global_step_4/state/tensors.safetensors",
        "metrics.jsonl",
    ):
        assert (last.parent / name).read_bytes() == (places[0] / "sft" / name).read_bytes(), name
    assert (copy / "global_step_4" / "complete.json").is_file()


def test_validation_episodes_are_copied_and_come_back(base, tmp_path):
    url = f"trainer.default_hdfs_dir=file://{tmp_path}/copies"
    two = ("trainer.total_training_steps=2", "trainer.save_freq=1", "trainer.test_freq=1", url)
    ppo_run.run_ppo(small_config(base, tmp_path / "one", *two))
    # Another machine has one step left to make.
    shutil.rmtree(tmp_path / "copies/ppo/global_step_2")
    ppo_run.run_ppo(small_config(base, tmp_path / "other", *two))
    one, other = (tmp_path / name / "ppo/trajectories" for name in ("one", "other"))
    names = [path.name for path in sorted(one.glob("val-*.jsonl"))]
    assert len(names) >= 2
    for name in names:
        assert (other / name).read_bytes() == (one / name).read_bytes(), name


def test_from_scratch_brings_back_no_copies(base, tmp_path):
    url = f"trainer.default_hdfs_dir=file://{tmp_path}/copies"
    steps = ("trainer.total_training_steps=1", "sft.trainer.total_training_steps=1")
    first = (*steps, "generate.policy=random", "generate.num_batches=1", url)
    pipeline.run(small_config(base, tmp_path / "run", *first))
    other = small_config(base, tmp_path / "run", *first[:3], "generate.num_batches=2", url)
    pipeline.run(other, generate_data=True)
    assert len(list((tmp_path / "run/data/trajectories").glob("*.jsonl"))) == 2


def test_another_machine_plays_the_second_round_with_the_rows_of_the_first(
    base, tmp_path, monkeypatch
):
    small = (
        "trainer.total_training_steps=1",
        "sft.trainer.total_training_steps=2",
        "generate.num_batches=1",
    )
    asked = (
        *small,
        "generate.policy=random",
        "generate.rounds=2",
        f"trainer.default_hdfs_dir=file://{tmp_path}/copies",
    )
    one, other = tmp_path / "one", tmp_path / "other"
    pipeline.run(small_config(base, one, *asked))
    for part in ("data", "sft", "ppo"):
        shutil.rmtree(tmp_path / "copies" / part)
    played, real = [], selfplay.self_play
    monkeypatch.setattr(
        selfplay, "self_play", lambda *args: played.append(args[1].folder) or real(*args)
    )
    (other / "round_1/data/trajectories").mkdir(parents=True)
    (other / "round_1/data/trajectories/generate-000001.jsonl").write_text(
        "of a batch that was begun"
    )
    pipeline.run(small_config(base, other, *asked))
    assert played == [other / "data"]
    for name in (
        "data/wm_train.parquet",
        "round_1/data/summary.json",
        "round_1/data/trajectories/generate-000001.jsonl",
    ):
        assert (other / name).read_bytes() == (one / name).read_bytes(), name


def test_every_stage_of_every_arm_has_a_place_of_its_own(tmp_path):
    url = "trainer.default_hdfs_dir=s3://bucket/run/"
    cfg = small_config("none", tmp_path, url)
    assert copies_of(cfg, tmp_path / "round_1" / "sft") == "s3://bucket/run/round_1/sft"
    assert copies_of(cfg, Path("/elsewhere/ppo")) == "s3://bucket/run/ppo"
    made = methods_compared(
        "base", [*SMALL, "model_path=none", f"trainer.run_dir={tmp_path}", url], seeds=2
    )
    places = [
        copies_of(training.ppo, training.folder / "ppo")
        for trainings in made.trainings.values()
        for training in trainings
    ]
    assert len(set(places)) == len(places) and "s3://bucket/run/seed_1/vanilla/ppo" in places
    assert copies_of(small_config("none", tmp_path), tmp_path / "ppo") is None

"""Iterated self-play: the fine-tuned model plays the next round, and the rows of all rounds count."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from helpers.runs import small_config

from spa.config.schema import to_plain
from spa.errors import ConfigError, ModelError
from spa.launch.job import Job, lost_episodes
from spa.models.precision import KEYS, precision_of, with_precision
from spa.recipes import pipeline, selfplay, sft_run
from spa.recipes.rounds import first_round, rounds_of
from spa.run.files import save_config
from spa.run.fingerprint import differences
from spa.run.manifest import Manifest, is_finished
from spa.worldmodel.parquet import puzzles_in
from spa.worldmodel.sft_files import read_examples

STEPS = (
    "trainer.total_training_steps=1",
    "sft.trainer.total_training_steps=2",
    "generate.num_batches=1",
    "generate.policy=random",
)


def rows_of(folder):
    return [
        row for name in ("wm_train", "wm_val") for row in read_examples(folder / f"{name}.parquet")
    ]


def unfinish(folder: Path) -> None:
    """As when the process was killed before its stage was marked as finished."""
    known = Manifest.read(folder)
    assert known is not None
    replace(known, result=None).write(folder)


@pytest.fixture(scope="module")
def run(base, tmp_path_factory):
    root = tmp_path_factory.mktemp("rounds")
    cfg = small_config(base, root, *STEPS, "generate.rounds=2")
    assert pipeline.run(cfg) == root / "ppo" / "global_step_1"
    return root


def test_the_second_round_is_played_and_begun_by_the_model_of_the_first(run, base):
    first = yaml.safe_load((run / "round_1/data/config.yaml").read_text())
    second = yaml.safe_load((run / "data/config.yaml").read_text())
    assert (first["generate"]["policy"], second["generate"]["policy"]) == ("random", "self")
    assert second["model_path"] == str(run / "round_1/sft/global_step_2")
    learnt = yaml.safe_load((run / "sft/config.yaml").read_text())
    assert learnt["sft"]["model"]["partial_pretrain"] == str(run / "round_1/sft/global_step_2")


def test_examples_of_both_rounds_are_learnt_from_and_no_puzzle_is_played_twice(run):
    early, both = rows_of(run / "round_1/data"), rows_of(run / "data")
    kept = {(example.episode_id, example.turn): example.response for example in both}
    assert all(kept[example.episode_id, example.turn] == example.response for example in early)
    new = {example.puzzle_seed for example in both} - {example.puzzle_seed for example in early}
    assert new and len(both) > len(early)
    assert len({(example.episode_id, example.turn) for example in both}) == len(both)


def test_no_puzzle_of_an_earlier_round_changes_sides(run):
    """The model goes on from round 1, so its training puzzles tell nothing in the validation of round 2."""
    (first_train, first_val), (train, val) = (
        [puzzles_in([folder / f"wm_{side}.parquet"]) for side in ("train", "val")]
        for folder in (run / "round_1/data", run / "data")
    )
    assert first_train < train and first_val < val
    assert not train & val


def test_what_each_round_added_is_told(run):
    first, second = json.loads((run / "sft/rounds.json").read_text())
    assert (first["policy"], second["policy"]) == ("random", "self")
    assert first["examples_train"] + first["examples_val"] == len(rows_of(run / "round_1/data"))
    assert second["examples_train"] > first["examples_train"]
    assert {"format_rate", "prediction_exact", "diagnosis"} <= second["learnt"].keys()
    assert first["played"]["format_rate"] == 1


def test_a_run_in_its_first_round_keeps_its_precision(base, tmp_path):
    cfg = small_config(base, tmp_path, "generate.rounds=2", "actor_rollout_ref.model.dtype=auto")
    begun = with_precision(cfg, dict.fromkeys(KEYS, "bfloat16"))
    (tmp_path / "round_1" / "data").mkdir(parents=True)
    save_config(to_plain(begun), tmp_path / "round_1" / "data" / "config.yaml")
    assert precision_of(cfg, pipeline.every_folder(cfg), feature="none")[KEYS[0]] == "bfloat16"


def test_a_finished_run_of_rounds_is_left_alone_and_goes_on_after_a_loss(run, base):
    files = {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")}
    cfg = small_config(base, run, *STEPS, "generate.rounds=2")
    pipeline.run(cfg)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")} == files
    before = rows_of(run / "data")
    unfinish(run / "data")
    for name in ("wm_train.parquet", "wm_val.parquet"):
        (run / "data" / name).unlink()
    pipeline.run(cfg)
    assert rows_of(run / "data") == before


def test_from_the_second_round_on_the_model_plays_what_it_imagines_best(base, tmp_path):
    lake = ("generate.rounds=2", "generate.imagine.n=3", "generate.imagine.depth=2")
    pipeline.run(small_config(base, tmp_path, *STEPS, *lake))
    first, last = (
        json.loads((tmp_path / part / "data/summary.json").read_text()) for part in ("round_1", ".")
    )
    assert "imagination" not in first and (
        last["imagination"]["n"],
        last["imagination"]["depth"],
    ) == (3, 2)
    files = sorted((tmp_path / "data/imagined").iterdir())
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    played = [
        json.loads(line)
        for path in (tmp_path / "data/trajectories").glob("*")
        for line in path.open()
    ]
    turns = {
        (episode["episode_id"], turn) for episode in played for turn in range(len(episode["turns"]))
    }
    assert {(line["episode_id"], line["turn"]) for line in lines} == turns and len(lines) == len(
        turns
    )
    assert last["imagination"]["tokens_per_episode"] > 2 * last["played"]["response_length"]
    unfinish(tmp_path / "data")
    (tmp_path / "data/summary.json").unlink()
    pipeline.run(small_config(base, tmp_path, *STEPS, *lake))
    again = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert again == lines and json.loads((tmp_path / "data/summary.json").read_text()) == last


def test_examples_made_anew_of_planned_play_cost_what_it_cost(base, tmp_path):
    play = ("generate.imagine.n=3", "generate.num_batches=1")
    selfplay.run_self_play(small_config(base, tmp_path, *play), directory=tmp_path / "a")
    control = small_config(base, tmp_path, *play, "generate.shuffle_next_states=true")
    selfplay.run_self_play(control, directory=tmp_path / "b", episodes=tmp_path / "a")
    first, second = (json.loads((tmp_path / name / "summary.json").read_text()) for name in "ab")
    assert first["imagination"] == second["imagination"] and second["shuffled_next_states"]


def test_who_does_not_play_plans_nothing_and_says_so(base, tmp_path, caplog):
    selfplay.run_self_play(
        small_config("none", tmp_path, "generate.policy=random", "generate.imagine.n=4"),
        directory=tmp_path,
    )
    assert "generate.imagine has no effect" in caplog.text
    assert not any("/wm/" in line for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


def test_later_rounds_may_play_fewer_batches_and_never_the_puzzles_of_another(base, tmp_path):
    many = (
        "generate.num_batches=8",
        "generate.rounds=3",
        "generate.later_batches=2",
        "generate.policy=random",
    )
    rounds = rounds_of(small_config(base, tmp_path, *many), tmp_path / "data", tmp_path / "sft")
    played = [
        range(own.first_batch, own.first_batch + own.cfg.generate.num_batches) for own in rounds
    ]
    assert played == [range(8), range(8, 10), range(10, 12)]
    fresh = small_config(base, tmp_path, *many[:2], many[3], "generate.train_on=current_round")
    fresh = rounds_of(fresh, tmp_path / "data", tmp_path / "sft")
    assert [len(own.earlier) for own in rounds] == [0, 1, 2] and not any(
        own.earlier for own in fresh
    )
    assert fresh[0].cfg == rounds[0].cfg
    alone = rounds_of(
        small_config(base, tmp_path, *many[:2], many[3]), tmp_path / "data", tmp_path / "sft"
    )
    assert rounds[0].cfg == alone[0].cfg  # so that a first round that is finished serves both
    single = [
        small_config(base, tmp_path, *more) for more in ((), ("generate.train_on=current_round",))
    ]
    first, second = (rounds_of(cfg, tmp_path / "data", tmp_path / "sft") for cfg in single)
    assert first[0].cfg == second[0].cfg  # one round has nobody else's rows


def test_a_batch_of_self_play_may_have_as_many_episodes_of_more_puzzles(tmp_path):
    played = {}
    for size, more in ((2, ()), (1, ("generate.group_size=1",))):
        groups = (
            "generate.policy=random",
            "es_manager.train.env_groups=3",
            "es_manager.train.group_size=2",
        )
        out = selfplay.run_self_play(
            small_config("none", tmp_path, *groups, *more), directory=tmp_path / str(size)
        )
        lines = [
            line
            for file in sorted(out.glob("trajectories/*.jsonl"))
            for line in file.read_text().splitlines()
        ]
        played[size] = [json.loads(line) for line in lines]
    puzzles = {
        size: [each["puzzle_hash"] for each in episodes] for size, episodes in played.items()
    }
    assert len(puzzles[1]) == len(puzzles[2])
    assert len(set(puzzles[2])) == len(puzzles[2]) / 2 and len(set(puzzles[1])) > len(
        set(puzzles[2])
    )


def test_self_play_by_itself_is_the_first_round(base, tmp_path, caplog):
    lake = ("generate.rounds=2", "generate.imagine.n=3", "generate.imagine.depth=2")
    out = selfplay.run_self_play(small_config(base, tmp_path, "generate.num_batches=1", *lake))
    kept = yaml.safe_load((out / "config.yaml").read_text())["generate"]
    assert (kept["rounds"], kept["imagine"]["n"]) == (1, 1) and not (out / "imagined").exists()
    assert (
        "With generate.rounds=2, a command for self-play alone plays only the first round"
        in caplog.text
    )


def test_fine_tuning_by_itself_is_that_of_the_round_whose_data_are_there(run, base, tmp_path):
    root = Path(shutil.copytree(run, tmp_path / "run"))
    cfg = small_config(base, root, *STEPS, "generate.rounds=2")
    assert pipeline.run_sft_stage(cfg) == root / "sft" / "global_step_2"
    weights = (root / "sft/global_step_2/model.safetensors").read_bytes()
    shutil.rmtree(root / "sft")
    pipeline.run_sft_stage(cfg)
    assert (root / "sft/global_step_2/model.safetensors").read_bytes() == weights
    assert [each["round"] for each in json.loads((root / "sft/rounds.json").read_text())] == [1, 2]
    pipeline.run(cfg)
    pipeline.run_sft_stage(
        small_config(base, root, *STEPS, "generate.rounds=2", "trainer.resume_mode=disable")
    )
    assert (root / "sft/previous/1/global_step_2").is_dir()
    for name in ("sft", "round_1/sft"):
        shutil.rmtree(root / name)
    with pytest.raises(
        ModelError, match="round_1/sft: the checkpoint of the finished stage is missing"
    ):
        pipeline.run_sft_stage(cfg)
    alone = small_config(base, root, *STEPS, "generate.rounds=3")
    with pytest.raises(ConfigError, match="the previous stage"):
        pipeline.run_sft_stage(alone)


def test_fine_tuning_by_itself_on_the_data_of_the_first_round_is_that_of_the_first_round(
    run, base, tmp_path, caplog
):
    cfg = small_config(base, tmp_path, *STEPS, "generate.rounds=2")
    shutil.copytree(run / "round_1/data", tmp_path / "data")
    pipeline.run_sft_stage(cfg)
    first = (run / "round_1/sft/global_step_2/model.safetensors").read_bytes()
    assert (tmp_path / "sft/global_step_2/model.safetensors").read_bytes() == first
    assert (
        "With generate.rounds=2, a command for a single stage fine-tunes only the first round"
        in caplog.text
    )


def test_fine_tuning_by_itself_on_base_examples_takes_the_steps_of_all_rounds(base, tmp_path):
    cfg = small_config(
        base,
        tmp_path,
        *STEPS,
        "generate.rounds=2",
        "generate.example_format=base",
        "gate.enable=false",
    )
    selfplay.run_self_play(cfg)
    assert pipeline.run_sft_stage(cfg) == tmp_path / "sft" / "global_step_4"
    whole = pipeline.fingerprints(rounds_of(cfg, tmp_path / "data", tmp_path / "sft"))
    assert all(is_finished(folder, fingerprint) for folder, fingerprint in whole)


def test_the_base_model_on_rows_of_a_later_round_is_another_model(run, base):
    same_seed = small_config(base, run, *STEPS, "sft.trainer.seed=2")
    known = Manifest.read(run / "sft")
    assert known is not None
    assert differences(
        known.fingerprint, sft_run.sft_fingerprint(same_seed, run / "data")
    ).keys() == {
        "the data set",
        "the previous stage",
    }


def test_one_round_has_rows_of_its_own_whichever_command_plays_it(base, tmp_path):
    cfg = small_config(base, tmp_path, "generate.train_on=current_round")
    assert first_round(cfg) == rounds_of(cfg, tmp_path / "data", tmp_path / "sft")[0].cfg


def test_episodes_that_early_rounds_lost_are_counted(base, tmp_path):
    cfg = small_config(base, tmp_path, "generate.rounds=2")
    for name in ("round_1/data", "data"):
        (tmp_path / name).mkdir(parents=True)
        line = {"step": 0, "selfplay/errors": 1, "selfplay/episodes": 3}
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert lost_episodes(cfg, Job(stage="run")) == (2, 8)
    assert lost_episodes(cfg, Job(stage="generate")) == (1, 4)

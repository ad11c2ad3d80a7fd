"""Evaluation sets: their files, what training leaves out, and `spa eval --eval-set`."""

import json
from dataclasses import replace
from importlib import resources

import pytest

from spa import cli
from spa.config.load import load_config
from spa.envs import eval_sets
from spa.envs.eval_sets import eval_set, eval_set_hashes, eval_set_names, to_json
from spa.envs.registry import make_env
from spa.errors import ConfigError, DataError
from spa.recipes import evaluate, setup
from spa.rollout.loop import puzzle_hash

NAMES = eval_set_names()


@pytest.mark.parametrize("name", NAMES)
def test_a_set_is_what_its_file_says(name):
    found = eval_set(name)
    assert len(found.seeds) == len(found.puzzle_hashes) == 256
    assert len(set(found.puzzle_hashes)) == 256
    text = (resources.files("spa") / "assets/eval_sets" / f"{name}.json").read_text()
    assert to_json(found) == text
    spec = load_config("base").custom_envs[found.tag]
    assert (spec.env_type, json.loads(json.dumps(spec.env_config))) == (
        found.env_type,
        found.options,
    )
    env = make_env(found.env_type, found.options)
    for number in range(0, 256, 16):
        env.reset(seed=found.seeds[number])
        assert puzzle_hash(env) == found.puzzle_hashes[number]


def test_a_damaged_file_is_refused(tmp_path, monkeypatch):
    text = to_json(eval_set("lake-4x4"))
    path = tmp_path / "lake-4x4.json"
    path.write_text(text.replace('"max_turn": 3', '"max_turn": 9'))
    monkeypatch.setattr(eval_sets, "_files", lambda: iter([path]))
    eval_set.cache_clear()
    with pytest.raises(ConfigError, match="lake-4x4 is damaged"):
        eval_set("lake-4x4")
    eval_set.cache_clear()


def test_an_unknown_set_names_the_nearest():
    with pytest.raises(ConfigError, match="sokoban-6x6"):
        eval_set("sokoban-6x7")


def test_training_leaves_the_puzzles_of_sets_out():
    """Of episodes whose seeds are those of a set, training samples other puzzles."""
    chosen = eval_set("hidden-lake-4x4")
    cfg = load_config("smol_hidden_lake", [f"seed.train={chosen.seeds[0]}"])
    worker = setup.make_worker(cfg, None, mode="base")
    held_out = setup.validation_hashes(cfg, worker)
    assert eval_set_hashes() <= held_out
    for purpose in ("train", "selfplay"):
        specs = setup.training_specs(cfg, worker, purpose, step=0, held_out=held_out)
        looks = [worker.peek_reset(spec) for spec in specs]
        assert not {look.hash for look in looks} & eval_set_hashes()
    # The seeds of training are the set's own, but for this check.
    plain = setup.training_specs(cfg, worker, "train", step=0, held_out=frozenset())
    assert {worker.peek_reset(spec).hash for spec in plain} & eval_set_hashes()


def test_puzzles_that_changed_or_were_trained_on_are_refused():
    chosen = eval_set("lake-4x4")
    cfg = load_config("smol_frozen_lake", chosen.overrides())
    worker = setup.make_worker(cfg, None, mode="base")
    puzzles, seen = evaluate.unseen_puzzles(cfg, worker, frozenset(), chosen)
    assert [puzzle.hash for puzzle in puzzles] == [*chosen.puzzle_hashes] and not seen
    with pytest.raises(DataError, match="Puzzle 3 of the evaluation set lake-4x4 was a training"):
        evaluate.unseen_puzzles(cfg, worker, frozenset({chosen.puzzle_hashes[3]}), chosen)
    other = replace(chosen, seeds=(1, *chosen.seeds[1:]))
    with pytest.raises(DataError, match="has changed since the set was made"):
        evaluate.unseen_puzzles(cfg, worker, frozenset(), other)


def test_the_command_plays_a_set_sampled_and_greedily(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    command = ["eval", "random", "--config", "smol_frozen_lake", "--eval-set", "lake-4x4"]
    command += ["trainer.run_dir=run"]
    for _ in range(2):
        assert cli.main(command) == 0
    out = capsys.readouterr().out
    assert "random, sampled" in out and "random, greedy" in out and "one-step look-ahead" in out
    results = sorted((tmp_path / "run/eval").glob("*.json"))
    assert [path.stem.rsplit("-", 1)[1] for path in results] == ["greedy", "sampled"]
    greedy, sampled = (json.loads(path.read_text()) for path in results)
    assert sampled["settings"]["samples"] == 2 and greedy["settings"]["samples"] == 1
    assert sampled["tags"]["FrozenLakeNoSlip"]["puzzles"] == 256
    assert sampled["eval_set"] == {"name": "lake-4x4", "sha256": eval_set("lake-4x4").digest}
    # The second call reuses the results, so the log has each evaluation once.
    log = (tmp_path / "benchmarks/results/openings.jsonl").read_text().splitlines()
    assert [json.loads(line)["decoding"] for line in log] == ["sampled", "greedy"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--samples", "4"], "--eval-set fixes the puzzles"),
        (["custom_envs.FrozenLakeNoSlip.env_config.size=5"], "custom_envs.FrozenLakeNoSlip"),
        (["--world-model"], "--eval-set belongs to another measurement"),
    ],
)
def test_what_a_set_does_not_allow(tmp_path, monkeypatch, capsys, more, message):
    monkeypatch.chdir(tmp_path)
    command = ["eval", "random", "--config", "smol_frozen_lake", "--eval-set", "lake-4x4", *more]
    assert cli.main(command) != 0
    assert message in capsys.readouterr().err

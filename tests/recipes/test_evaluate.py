"""`spa eval` from end to end, mostly with policies that need no model."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.stages import mark_finished

from spa import cli
from spa.commands.evaluate import remarks
from spa.config.load import load_config
from spa.errors import ConfigError, DataError, ModelError
from spa.evaluation.episode_metrics import episode_metrics
from spa.models.load import BUILTIN, model_source
from spa.policies.scripted import ScriptedEngine, random_engine
from spa.recipes import evaluate, policies, setup
from spa.recipes.imagination import imagination
from spa.recipes.policies import find_target, has_all_example_files, run_of, training_hashes
from spa.recipes.ppo_rollouts import validation_episodes
from spa.run.files import read_lines
from spa.types import Episode
from spa.worldmodel.parquet import TRAIN_FILE
from spa_report.reading import open_run

LAKE = "FrozenLakeNoSlip"


def demo(groups: int = 6, samples: int = 2, *more: str):
    return load_config(
        "demo",
        [
            f"es_manager.val.env_groups={groups}",
            f"es_manager.val.group_size={samples}",
            "es_manager.val.env_configs.n_groups=null",
            *more,
        ],
    )


def run(cfg, name, path, **options):
    return evaluate.evaluate_target(cfg, find_target(name), output=path, **options)


def test_equal_seeds_give_equal_bytes_and_other_seeds_do_not(tmp_path):
    for name in ("a", "b"):
        run(demo(), "random", tmp_path / f"{name}.json")
    run(demo(6, 2, "seed.val=7"), "random", tmp_path / "c.json")
    first, second, other = ((tmp_path / f"{name}.json").read_bytes() for name in "abc")
    assert first == second != other


def test_scores_what_validation_during_training_scores(tmp_path):
    cfg = demo(12, 4)
    result = run(cfg, "random", tmp_path / "r.json")
    player = setup.make_worker(cfg, None, mode=cfg.ctx_manager.mode)
    episodes = validation_episodes(cfg, player, random_engine(max_actions=3))
    metrics = episode_metrics(episodes, "val")
    found = result["tags"][LAKE]
    assert 0 < found["pass@1"]["mean"] < 1
    assert found["pass@1"]["mean"] == pytest.approx(metrics[f"val/{LAKE}/success"], abs=1e-6)
    assert found["pass@4"]["mean"] == pytest.approx(metrics[f"val/{LAKE}/pass@4"], abs=1e-6)


def test_what_turns_do_not_hold_is_no_part_of_the_optimum(tmp_path):
    found = run(demo(12, 1, "agent_proxy.max_turn=1"), "expert", tmp_path / "r.json")["tags"][LAKE]
    # one turn holds three actions
    within = [part for part in found["by_difficulty"] if part["difficulty"] <= 3]
    assert found["optimum"] == round(sum(part["pass@1"]["n"] for part in within) / 12, 4) < 1
    assert found["percent_of_optimum"] == pytest.approx(100, abs=0.01)


@pytest.mark.parametrize("workers", [0, 1])
def test_difficulty_of_a_sudoku_is_its_clues_in_other_processes_too(tmp_path, workers):
    cfg = demo(
        2,
        1,
        f"es_manager.env_workers={workers}",
        "es_manager.val.env_configs.tags=[Sudoku]",
        "custom_envs.Sudoku.env_config.clues=11",
    )
    found = run(cfg, "random", tmp_path / "r.json")["tags"]["Sudoku"]
    assert found["difficulty_is"] == "clues"
    assert [part["difficulty"] for part in found["by_difficulty"]] == [11]


def test_players_that_believe_nothing_have_no_figures_of_states(tmp_path):
    found = run(demo(4, 1), "random", tmp_path / "r.json")["tags"][LAKE]
    assert (
        found["format_rate"] == 1.0 and not {"prediction_exact", "observation_exact"} & found.keys()
    )


def test_expert_reaches_the_optimum(tmp_path):
    # what the card is about; the demo's lake is smaller
    measured = "custom_envs.FrozenLakeNoSlip.env_config.size=4"
    found = run(demo(6, 2, measured), "expert", tmp_path / "r.json")["tags"][LAKE]
    assert found["pass@1"]["mean"] == 1.0
    assert found["percent_of_optimum"] == pytest.approx(100 / found["optimum"])
    assert found["ineffective_per_action"] == 0.0
    assert found["actions_per_episode"] == pytest.approx(
        sum(part["difficulty"] * part["pass@1"]["n"] for part in found["by_difficulty"]) / 6
    )


def test_expert_says_when_there_is_no_solver(tmp_path):
    cfg = demo(
        2,
        1,
        "es_manager.val.env_configs.tags=['2048']",
        "es_manager.train.env_configs.tags=['2048']",
    )
    with pytest.raises(
        ConfigError, match="needs a solver, which the environment 2048 does not have"
    ):
        run(cfg, "expert", tmp_path / "r.json")


class Dying(ScriptedEngine):
    """Plays at random until its connection breaks for good."""

    def __init__(self, calls: int) -> None:
        super().__init__(random_engine(max_actions=3).response)
        self.calls = calls

    def generate(self, prompts, sampling):
        self.calls -= 1
        if self.calls < 0:
            raise ModelError("the server is gone")
        return super().generate(prompts, sampling)


def test_goes_on_where_it_was_broken_off(tmp_path, monkeypatch):
    cfg, path = demo(6, 2), tmp_path / "broken.json"
    monkeypatch.setattr(evaluate, "CHUNK", 4)
    run(cfg, "random", tmp_path / "whole.json")
    engines = [Dying(8), Dying(100)]
    monkeypatch.setattr(
        evaluate, "open_target", lambda cfg, target, player, **_: (engines.pop(0), player)
    )
    with pytest.raises(ModelError):
        run(cfg, "random", path)
    kept = path.with_suffix(".groups.jsonl").read_text().splitlines()
    assert not path.exists() and 1 < len(kept) < 7
    run(cfg, "random", path)
    assert path.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert path.with_suffix(".groups.jsonl").read_text().splitlines()[: len(kept)] == kept
    assert len(path.with_suffix(".groups.jsonl").read_text().splitlines()) == 7
    run(cfg, "random", path)  # opens no third engine: everything is kept
    assert not engines


def test_its_episodes_can_be_viewed_and_are_those_of_the_result(tmp_path):
    for settings in ((), (), ("seed.val=7",)):
        run(demo(4, 2, *settings), "random", tmp_path / "r.json")
        (stage,) = open_run(tmp_path / "r").stages
        (file,) = stage.trajectory_files()
        episodes = [Episode.from_json(row) for _, row in read_lines(file.path)]
        found = json.loads((tmp_path / "r.json").read_text())["tags"][LAKE]
        assert len(episodes) == 8 == len({episode.episode_id for episode in episodes})
        assert sum(episode.success for episode in episodes) / 8 == pytest.approx(
            found["pass@1"]["mean"], abs=1e-6
        )
    assert len(list((tmp_path / "r" / "previous").rglob("*.jsonl"))) == 1


def test_episodes_are_appended_chunk_by_chunk(tmp_path, monkeypatch):
    """A chunk of an evaluation of many puzzles must not write all episodes again."""
    monkeypatch.setattr(evaluate, "CHUNK", 4)
    path = tmp_path / "r" / "trajectories" / "val-000000.jsonl"
    files = []
    add = evaluate.EpisodeFile.add

    def noted(self, episodes):
        add(self, episodes)
        files.append((path.stat().st_ino, path.read_text()))

    monkeypatch.setattr(evaluate.EpisodeFile, "add", noted)
    run(demo(6, 2), "random", tmp_path / "r.json")
    assert len(files) == 3 and len({inode for inode, _ in files}) == 1
    whole = files[-1][1]
    # killed in the midst of a line, and before the groups of the last chunk were kept
    groups = tmp_path / "r.groups.jsonl"
    groups.write_text("".join(groups.read_text().splitlines(keepends=True)[:5]))
    path.write_text(whole[:-50])
    run(demo(6, 2), "random", tmp_path / "r.json")
    assert path.read_text() == whole


def test_a_line_that_a_kill_cut_off_costs_its_group_and_not_the_next(tmp_path):
    cfg, path = demo(6, 2), tmp_path / "r.json"
    run(cfg, "random", path)
    groups = path.with_suffix(".groups.jsonl")
    whole = groups.read_text().splitlines(keepends=True)
    groups.write_text("".join(whole[:3]) + whole[3][:40])
    path.unlink()
    run(cfg, "random", path)
    assert sum(line in whole[1:] for line in groups.read_text().splitlines(keepends=True)) >= 2 + 6


def test_more_groups_keep_what_was_played(tmp_path):
    path = tmp_path / "r.json"
    run(demo(128, 2), "random", path)
    before = path.with_suffix(".groups.jsonl").read_text()
    assert run(demo(130, 2), "random", path)["tags"][LAKE]["puzzles"] == 130
    assert path.with_suffix(".groups.jsonl").read_text().startswith(before)


def test_other_settings_set_old_groups_aside(tmp_path):
    path = tmp_path / "r.json"
    run(demo(), "random", path)
    old = path.with_suffix(".groups.jsonl").read_text()
    run(demo(6, 2, "agent_proxy.max_turn=1"), "random", path)
    assert (tmp_path / "previous" / "1" / "r.groups.jsonl").read_text() == old
    assert json.loads(path.read_text())["tags"][LAKE]["turns_per_episode"] == 1.0


@pytest.mark.parametrize(
    ("more", "at_a_time"), [((), 12), (("imagine.n=6", "imagine.dynamics=simulator"), 2)]
)
def test_where_several_responses_are_drawn_fewer_episodes_are_lost_with_a_process(
    tmp_path, monkeypatch, more, at_a_time
):
    monkeypatch.setattr(evaluate, "CHUNK", 12)
    calls, play = list[int](), setup.RolloutWorker.rollout
    monkeypatch.setattr(
        setup.RolloutWorker, "rollout", lambda *args: calls.append(len(args[2])) or play(*args)
    )
    run(demo(6, 2, *more), "random", tmp_path / "r.json")
    assert calls == [at_a_time] * (12 // at_a_time)


@pytest.mark.parametrize(
    ("trained", "played", "precision"),
    [
        ("builtin:tiny", "builtin:tiny", "float32"),
        ("owner/model-of-135M", "builtin:tiny", "float32"),
        ("builtin:tiny", "owner/model-of-135M", "bfloat16"),
        ("builtin:tiny", "random", "float32"),
    ],
)
def test_the_precision_is_that_of_the_model_that_plays(
    tmp_path, monkeypatch, trained, played, precision
):
    found = []

    def note(evaluation, *args):
        found.append(evaluation.cfg.actor_rollout_ref.rollout.dtype)
        raise ModelError("that is enough")

    monkeypatch.setattr("spa.models.precision.processor_feature", lambda: "amx")
    monkeypatch.setattr(evaluate, "play_puzzles", note)
    with pytest.raises(ModelError, match="enough"):
        run(
            demo(1, 1, f"model_path={trained}", "trainer.device=cpu"),
            played,
            tmp_path / "result.json",
        )
    assert found == [precision]


def test_planner_figures_are_those_of_the_episodes_that_count(tmp_path):
    own = demo(1, 1, "imagine.n=2", "imagine.dynamics=simulator").imagine
    record = tmp_path / "imagined.jsonl"
    lines = [
        {
            "episode_id": name,
            "turn": 0,
            "tokens": [1, 1],
            "chosen": 0,
            "imagined": [{"right": right}, {"right": right}],
        }
        for name, right in (("now", True), ("earlier", False))
    ]
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for episodes, share in ((None, 0.5), ({"now"}, 1.0)):
        found = imagination(own, [record], episodes=episodes)
        assert found is not None and found["right"] == share
        assert found["tokens_per_episode"] == 2
    # The number of an episode of two turns went to another puzzle, whose episode has one.
    again = [{**lines[0], "turn": turn, "tokens": [9, 9]} for turn in (0, 1)] + [lines[0]]
    record.write_text("".join(json.dumps(line) + "\n" for line in again))
    found = imagination(own, [record])
    assert found is not None and found["tokens_per_episode"] == 2
    # A turn that follows an earlier path has a response of its own.
    kept = [{**lines[0], "turn": 0}, {**lines[0], "turn": 1, "tokens": [5], "kept": True}]
    record.write_text("".join(json.dumps(line) + "\n" for line in kept))
    found = imagination(own, [record])
    assert found is not None and found["tokens_per_episode"] == 7
    lines[0]["tokens"] = [None, None]  # of an engine without token ids
    record.write_text(json.dumps(lines[0]) + "\n")
    found = imagination(own, [record])
    assert found is not None and found["tokens_per_episode"] is None
    result = {"not_computed": [], "puzzles": {"seen_in_training": 0, "training_puzzles_known": 1}}
    text = remarks({**result, "model": None, "imagination": found, "tags": {}})[-1]
    assert text.endswith("% of the turns.")


def test_training_puzzles_are_left_out(tmp_path, untrained_model):
    cfg = demo(6, 1)
    player = setup.make_worker(cfg, None, mode="base")
    hashes = [puzzle.hash for puzzle in evaluate.unseen_puzzles(cfg, player, frozenset())[0]]
    folder = tmp_path / "run" / "ppo" / "trajectories"
    folder.mkdir(parents=True)
    lines = [
        json.dumps({"episode_id": "x", "puzzle_hash": h, "turns": []}, separators=(",", ":"))
        for h in hashes[:2]
    ]
    (folder / "train-000001.jsonl").write_text("\n".join(lines) + "\n")
    assert training_hashes(tmp_path / "run") == set(hashes[:2])
    (tmp_path / "run/round_1/data").mkdir(parents=True)
    pq.write_table(
        pa.table({"puzzle_hash": ["learnt in round 1"]}), tmp_path / "run/round_1/data" / TRAIN_FILE
    )
    assert training_hashes(tmp_path / "run") == {*hashes[:2], "learnt in round 1"}
    # An SFT model without examples in the folder: they are somewhere else.
    assert has_all_example_files(tmp_path / "run")
    (tmp_path / "elsewhere" / "sft").mkdir(parents=True)
    assert not has_all_example_files(tmp_path / "elsewhere")
    # PPO whose configuration names another folder for SFT.
    (tmp_path / "tuned there").mkdir()
    (tmp_path / "apart" / "ppo").mkdir(parents=True)
    (tmp_path / "apart" / "ppo" / "config.yaml").write_text(
        f"sft: {{trainer: {{default_local_dir: {tmp_path / 'tuned there'}}}}}\n"
    )
    assert not has_all_example_files(tmp_path / "apart")
    # PPO that began from a checkpoint of another run.
    checkpoint = tmp_path / "run" / "sft" / "global_step_4"
    checkpoint.mkdir(parents=True)
    later = tmp_path / "later"
    (later / "ppo").mkdir(parents=True)
    (later / "ppo" / "config.yaml").write_text(f"model_path: {checkpoint}\n")
    assert training_hashes(later) == training_hashes(tmp_path / "run")
    assert has_all_example_files(later)
    # SFT that began from another run's checkpoint has that run's puzzles, too.
    tuned = tmp_path / "tuned"
    (tuned / "sft").mkdir(parents=True)
    (tuned / "data").mkdir()
    pq.write_table(pa.table({"puzzle_hash": ["its own"]}), tuned / "data" / TRAIN_FILE)
    (tuned / "sft" / "config.yaml").write_text(
        f"model_path: builtin:tiny\nsft: {{model: {{partial_pretrain: {checkpoint}}}}}\n"
    )
    assert training_hashes(tuned) == {"its own"} | training_hashes(tmp_path / "run")
    assert has_all_example_files(tuned)
    shutil.rmtree(tmp_path / "run/round_1/data")
    assert not has_all_example_files(tuned)
    puzzles, seen = evaluate.unseen_puzzles(cfg, player, training_hashes(tmp_path / "run"))
    assert seen == 2 and [puzzle.hash for puzzle in puzzles] == hashes[2:]
    with pytest.raises(DataError, match="All 6 validation puzzles were also training puzzles"):
        evaluate.unseen_puzzles(cfg, player, frozenset(hashes))


def test_puzzles_of_a_game_with_few_are_named_if_they_were_trained_on(tmp_path):
    run = tmp_path / "run"
    (run / "ppo").mkdir(parents=True)
    tags = "es_manager.val.env_configs.tags=[Bandit]"
    cfg = load_config("demo", [tags, "es_manager.val.env_groups=3", "es_manager.val.group_size=1"])
    player = setup.make_worker(cfg, None, mode="base")
    hashes = [puzzle.hash for puzzle in evaluate.unseen_puzzles(cfg, player, frozenset())[0]]
    (run / "ppo" / "trajectories").mkdir()
    line = json.dumps({"episode_id": "x", "puzzle_hash": hashes[0]}, separators=(",", ":"))
    (run / "ppo" / "trajectories" / "train-000001.jsonl").write_text(f"{line}\n")
    random = replace(find_target("random"), run=run)
    result = evaluate.evaluate_target(cfg, random, output=tmp_path / "result.json")
    assert result["puzzles"]["trained_on"] == hashes.count(hashes[0])
    assert any("from training, because the game has few" in line for line in remarks(result))


def test_hash_is_found_in_what_the_recorder_writes():
    cfg = demo(1, 1)
    player = setup.make_worker(cfg, None, mode="base")
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=1, step=0)
    episode = player.rollout(random_engine(max_actions=3), specs, setup.val_sampling(cfg))[0]
    line = json.dumps(episode.to_json(), separators=(",", ":")).encode()
    found = policies._HASH.search(line[: policies._HEAD])
    assert found is not None and found.group(1).decode() == episode.puzzle_hash


def test_model_that_never_follows_the_format_gets_a_clear_result(tmp_path, untrained_model):
    cfg = demo(
        3,
        2,
        "actor_rollout_ref.rollout.response_length=4",
        "agent_proxy.max_turn=2",
        "trainer.device=cpu",
    )
    result = run(cfg, str(untrained_model), tmp_path / "r.json", ks=(1, 2, 4, 8, 64))
    found = result["tags"][LAKE]
    assert found["format_rate"] == 0.0 and found["pass@1"]["mean"] == 0.0
    assert found["tokens_per_turn"] <= 4
    text = "\n".join(remarks(result))
    assert "no response follows the format" in text
    assert "Pass@4, Pass@8" in text and "--samples 64" in text
    assert "are unknown" in text


def test_run_of_a_checkpoint(tmp_path):
    assert run_of(tmp_path / "r" / "ppo" / "global_step_3") == tmp_path / "r"
    assert (
        run_of(tmp_path / "r" / "round_1" / "sft" / "global_step_3") == tmp_path / "r" / "round_1"
    )
    assert run_of(tmp_path / "model") is None


def test_the_model_of_a_stage_is_its_result_also_after_extra_steps(tmp_path):
    for name in ("global_step_2", "extra_1/global_step_3"):
        (tmp_path / "r" / "sft" / name).mkdir(parents=True)
        (tmp_path / "r" / "sft" / name / "complete.json").write_text('{"sha256": {}}')
    assert find_target(str(tmp_path / "r")).model == str(tmp_path / "r" / "sft" / "global_step_2")
    mark_finished(tmp_path / "r" / "sft", result="extra_1/global_step_3")
    assert find_target(str(tmp_path / "r")).model == str(
        tmp_path / "r" / "sft" / "extra_1" / "global_step_3"
    )


def test_a_checkpoint_is_found_by_a_path_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step = Path("runs/mine/sft/global_step_60")
    step.mkdir(parents=True)
    (step / "config.json").write_text("{}")
    assert find_target(str(step)).label == "sft-global_step_60"


def test_command_line_prints_a_table_and_writes_the_result(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sizes = "--puzzles 4 --samples 2 --k 1,8 --quiet"
    assert cli.main(["eval", "random", "--config", "demo", *sizes.split()]) == 0
    out = capsys.readouterr().out
    assert "Pass@8 cannot be computed from 2 samples per puzzle; use --samples 8." in out
    assert f"runs/demo/eval/random-demo-{LAKE}.json" in out
    result = json.loads((tmp_path / f"runs/demo/eval/random-demo-{LAKE}.json").read_text())
    assert result["settings"]["groups"] == 4 and set(result["not_computed"]) == {"pass@8"}


def test_a_second_model_does_not_replace_the_result_of_the_first(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        shutil.copytree(model_source(BUILTIN), tmp_path / name / "final")
    models = ["one/final", "two/final"]
    sizes = ["--puzzles", "1", "--samples", "1", "trainer.device=cpu"]
    assert cli.main(["eval", *models, "--config", "demo", *sizes]) == 2
    told = capsys.readouterr()
    assert "the results of one/final and two/final have one name" in told.err
    assert "one/final on unseen puzzles" in told.out

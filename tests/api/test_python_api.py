"""The public API: names that load lazily, environments, single episodes, and whole runs at small size."""

import inspect
import json
import pkgutil
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import pytest
from helpers.light import HEAVY
from helpers.tiny_preset import SMALL

import spa
from spa import cli
from spa.envs.frozen_lake import FrozenLake
from spa.prompts.render import SEEDS
from spa.types import StopReason, Turn

NOT_LOADED = (*HEAVY, "pydantic")


def test_importing_spa_loads_nothing_heavy_and_an_environment_needs_no_torch():
    code = f"import sys, spa; heavy = [name for name in {NOT_LOADED!r} if name in sys.modules]; "
    code += "spa.make('FrozenLake').reset(seed=0); print(heavy, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False\n"


def test_every_public_name_is_there_documented_and_no_module():
    """A submodule of that name would replace the function when it is imported."""
    modules = {module.name for module in pkgutil.iter_modules(spa.__path__)}
    for name in spa.__all__:
        assert name not in modules and name in dir(spa)
        assert not callable(getattr(spa, name)) or inspect.getdoc(getattr(spa, name))


@pytest.mark.parametrize("name", ["FrozenLake", "frozen_lake", "spa.envs.frozen_lake:FrozenLake"])
def test_a_tag_a_type_and_a_class_make_a_gymnasium_environment(name: str):
    env = spa.make(name, size=3)
    assert isinstance(env, spa.TextEnv) and isinstance(env, gymnasium.Env)
    state, _ = env.reset(seed=0)
    assert len(state.splitlines()) == 3
    assert env.step(env.action_names()[0]) is not None


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("FrozenLak", {}, "did you mean 'FrozenLake'"),
        ("FrozenLake", {"sise": 4}, "did you mean 'size'"),
        ("FrozenLake", {"size": 0}, "'size'"),
        ("nowhere:Game", {}, "nowhere"),
    ],
)
def test_what_cannot_be_made_is_one_message(name: str, options: dict[str, int], words: str):
    with pytest.raises(spa.SpaError, match=words):
        spa.make(name, **options)


@pytest.fixture(scope="module")
def tiny() -> spa.Model:
    return spa.load_model("builtin:tiny")


def test_the_same_seed_plays_the_same_episode(tiny: spa.Model):
    env = spa.make("FrozenLakeNoSlip", size=3)
    first = spa.play(tiny, env, seed=3)
    again = spa.play(tiny, env, seed=3)
    assert first.to_json() == again.to_json()
    assert first.puzzle_hash != spa.play(tiny, env, seed=4).puzzle_hash
    assert first.turns and first.token_ids is not None


def test_the_default_puzzle_is_none_of_the_samples():
    assert inspect.signature(spa.play).parameters["seed"].default not in SEEDS


def test_names_and_objects_play_alike(tiny: spa.Model):
    by_name = spa.play("builtin:tiny", "FrozenLakeNoSlip", seed=1)
    by_object = spa.play(tiny, spa.make("FrozenLakeNoSlip", config="tiny"), seed=1)
    assert by_name.turns == by_object.turns


def test_an_episode_has_the_name_that_its_environment_was_made_by(tiny: spa.Model):
    assert spa.play(tiny, spa.make("FrozenLakeNoSlip", size=3)).tag == "FrozenLakeNoSlip"
    assert spa.play(tiny, FrozenLake(size=3)).tag == "FrozenLake"


def test_a_wrapped_environment_is_played_without_its_wrappers(tiny: spa.Model, caplog):
    env = spa.make("FrozenLakeNoSlip", size=3)
    expected = spa.play(tiny, env)
    wrapped = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.wrappers.TimeLimit(env, 1))
    assert spa.play(tiny, wrapped).turns == expected.turns
    assert "without its wrappers" in caplog.text and "TimeLimit" in caplog.text
    assert spa.play(tiny, gymnasium.make("spa.envs.ids:spa/FrozenLake-v0", size=3)).turns


def test_policies_without_a_model_play():
    assert spa.play("random", "FrozenLake").turns
    assert spa.play("expert", "SimpleSokoban", seed=2).stop is StopReason.SUCCESS


def test_a_model_that_play_loads_is_closed(tiny: spa.Model, monkeypatch: pytest.MonkeyPatch):
    closed = []
    monkeypatch.setattr(spa.Model, "close", lambda model: closed.append(model.name))
    spa.play(tiny, "FrozenLakeNoSlip")
    spa.play("random", "FrozenLake")
    assert closed == ["random"]


def ten(turn: Turn) -> float:
    return 10.0


class Slow(FrozenLake):
    def step(self, action):
        time.sleep(60)
        return super().step(action)


def test_play_has_the_rewards_and_the_time_limit_of_the_configuration():
    cfg = spa.load_config(
        "tiny",
        [
            f"custom_envs.FrozenLakeNoSlip.reward={__name__}:ten",
            "es_manager.env_timeout_s=1",
        ],
    )
    turn = spa.play("random", "FrozenLakeNoSlip", seed=3, config=cfg).turns[0]
    assert (turn.reward, turn.reward_terms) == (10.0, {f"{__name__}:ten": 10.0})
    assert "took more than 1 s" in spa.play("random", Slow(), config=cfg).error


class Hostile(spa.TextEnv):
    """A game whose texts are markup. The first action ends it."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.over = False
        return self.state_text("grid"), {}

    def step(self, action):
        self.over = True
        info = {"action_is_valid": True, "action_is_effective": True, "success": True}
        return self.state_text("grid"), 1.0, True, False, info

    def state_text(self, mode):
        return "<script>alert(1)</script>" if self.over else "<b>start</b>"

    def to_action(self, text):
        return text

    def action_names(self):
        return ("<i>go</i>",)

    def instruction(self, mode):
        return "Go."

    def puzzle_text(self):
        return "one"


def test_an_environment_of_ones_own_plays_and_its_replay_is_escaped():
    episode = spa.play("random", Hostile())
    assert episode.success
    html = episode._repr_html_()
    for text in ("<script", "<b>start", "<i>go", "onerror="):
        assert text not in html
    assert "&lt;script&gt;" in html and "success" in html


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> spa.Run:
    folder = tmp_path_factory.mktemp("api") / "a run"
    return spa.train("tiny", output_dir=folder, overrides=SMALL)


def test_a_run_has_metrics_episodes_a_checkpoint_and_a_report(run: spa.Run):
    stages = {row["stage"] for row in run.metrics}
    assert {"data", "sft", "ppo"} <= stages
    assert all(isinstance(row["step"], int) for row in run.metrics)
    episodes = run.episodes()
    assert len(episodes) == 4 and all(isinstance(episode, spa.Episode) for episode in episodes)
    assert run.episodes(split="train", step=1)
    assert (run.checkpoint / "config.json").is_file()
    assert run.report().read_text(encoding="utf-8").startswith("<!doctype html>")


def test_training_again_reuses_the_run(run: spa.Run):
    before = (run.checkpoint / "model.safetensors").stat().st_mtime_ns
    again = spa.train(
        "tiny",
        output_dir=run.path,
        overrides=[f"{key}={text(value)}" for key, value in SMALL.items()],
    )
    assert again.path == run.path
    assert (run.checkpoint / "model.safetensors").stat().st_mtime_ns == before


def text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_keys_of_a_mapping_may_have_special_characters():
    from spa.api.runs import configuration

    reward = {"game": 1.0, "math:prod": 0.1}
    key = "a b,c=[d]{e}(f)\\g:h"
    overrides = {
        "custom_envs.FrozenLakeNoSlip.reward": reward,
        "custom_envs.FrozenLakeNoSlip.env_config": {key: "x"},
    }
    env = configuration("tiny", None, overrides, stages=()).custom_envs["FrozenLakeNoSlip"]
    assert env.reward == reward and env.env_config[key] == "x"


def test_a_run_loads_from_its_folder_and_plays(run: spa.Run, tmp_path: Path):
    loaded = spa.load_run(str(run.path))
    assert loaded.metrics == run.metrics
    assert spa.play(loaded, "FrozenLakeNoSlip").turns
    with pytest.raises(spa.SpaError, match="has no run"):
        spa.load_run(tmp_path)


def test_the_metrics_are_a_frame_of_a_column_per_metric(run: spa.Run):
    frame = run.to_pandas()
    assert len(frame) == len(run.metrics)
    (loss,) = frame.loc[(frame["stage"] == "sft") & (frame["step"] == 1), "train/loss"]
    assert loss == next(
        row["train/loss"] for row in run.metrics if (row["stage"], row["step"]) == ("sft", 1)
    )


def test_a_run_is_evaluated(run: spa.Run):
    measured = spa.evaluate(run, samples=8, puzzles=3)
    assert measured.path.is_relative_to(run.path / "eval") and measured.path.is_file()
    for interval in (measured.pass_at_1, measured.pass_at_8):
        assert 0 <= interval.low <= interval.mean <= interval.high <= 1 and 0 < interval.n <= 3
    assert measured.pass_at(1, "FrozenLakeNoSlip") == measured.pass_at_1
    with pytest.raises(spa.SpaError, match="samples=16 or more"):
        measured.pass_at(16)


def test_a_loaded_model_is_evaluated_as_its_name_is(tiny: spa.Model, tmp_path: Path):
    few = {"samples": 2, "puzzles": 2}
    loaded = spa.evaluate(tiny, output=tmp_path / "loaded.json", **few)
    named = spa.evaluate("builtin:tiny", "tiny", output=tmp_path / "named.json", **few)
    assert loaded.result["tags"] == named.result["tags"]
    assert spa.play(tiny, "FrozenLakeNoSlip").turns  # it is still open


def test_the_accuracy_of_a_world_model_is_that_of_the_command(
    tiny: spa.Model, tmp_path: Path, monkeypatch, capsys
):
    few = {"transitions": 20, "steps": 2}
    loaded = spa.evaluate_world_model(tiny, output=tmp_path / "loaded.json", **few)
    assert spa.play(tiny, "FrozenLakeNoSlip").turns  # it is still open
    monkeypatch.chdir(tmp_path)
    command = "eval builtin:tiny --world-model --config tiny --transitions 20 --rollout-steps 2"
    assert cli.main([*command.split(), "--output", "named.json", "--quiet"]) == 0
    assert json.loads((tmp_path / "named.json").read_text())["tags"] == loaded.result["tags"]
    for interval in (loaded.prediction(), loaded.observation("FrozenLakeNoSlip")):
        assert 0 <= interval.low <= interval.mean <= interval.high <= 1 and interval.n <= 20
    assert 0 <= loaded.copying() <= 1
    with pytest.raises(spa.SpaError, match="no environment Sudoku, only FrozenLakeNoSlip"):
        loaded.prediction("Sudoku")
    with pytest.raises(spa.SpaError, match="transitions must be at least 1"):
        spa.evaluate_world_model(tiny, transitions=0)


def test_a_loaded_policy_plays_by_the_limits_of_the_configuration(tmp_path: Path):
    one = {"samples": 4, "puzzles": 4}
    loaded = spa.evaluate(spa.load_model("random"), "tiny", output=tmp_path / "loaded.json", **one)
    named = spa.evaluate("random", "tiny", output=tmp_path / "named.json", **one)
    assert loaded.result["tags"] == named.result["tags"]
    with pytest.raises(spa.SpaError, match=r"evaluate again with ks=\[3\]"):
        loaded.pass_at(3)
    with pytest.raises(spa.SpaError, match="no environment Sudoku, only FrozenLakeNoSlip"):
        loaded.pass_at(1, "Sudoku")


def test_a_single_value_is_a_list_of_one(tmp_path: Path):
    few = {"samples": 2, "puzzles": 2, "output": tmp_path / "one.json"}
    measured = spa.evaluate("random", "tiny", ks=2, **few)
    assert measured.pass_at(2).n == 2
    with pytest.raises(spa.SpaError, match="no method 'vanila'"):
        spa.compare("tiny", methods="vanila")
    with pytest.raises(spa.SpaError, match="cannot run the stages pppo;"):
        spa.train("tiny", stages="pppo")
    for sweep in ({"algorithm.gamma": 0.9}, {"algorithm.adv_estimator": "gae"}):
        with pytest.raises(spa.SpaError, match="no key has several values"):
            spa.compare("tiny", sweep=sweep)


def test_a_configuration_takes_overrides_in_every_form():
    key = "trainer.total_training_steps"
    for overrides in ({key: 3}, [f"{key}=3"], f"{key}=3"):
        assert spa.load_config("tiny", overrides).trainer.total_training_steps == 3


def test_what_cannot_be_trained_or_compared_is_refused():
    with pytest.raises(spa.SpaError, match="consecutive"):
        spa.train("tiny", overrides=SMALL, stages=["selfplay", "ppo"])
    with pytest.raises(spa.SpaError, match="total_training_steps"):
        spa.train("tiny", overrides={"trainer.total_trainig_steps": 1})
    with pytest.raises(spa.SpaError, match="either methods or the values"):
        spa.compare("tiny", methods=["vanilla"], sweep={"algorithm.gamma": [1, 0.9]})

import pytest

from spa.cli import main as spa
from spa.config.load import load_config
from spa.errors import ConfigError
from spa_author.scaffold import write_env


def test_its_turns_hold_all_actions(tmp_path):
    write_env("my_game", tmp_path)
    config = load_config(tmp_path / "my_game.yaml")
    assert config.most_actions("MyGame") == config.custom_envs["MyGame"].max_actions_per_traj == 6


SHORT = (
    "generate.num_batches=1",
    "sft.trainer.total_training_steps=1",
    "sft.trainer.eval_episodes=4",
    "trainer.total_training_steps=1",
    "trainer.logger=[]",
    "es_manager.val.group_size=1",
    "generate.sampling.response_length=16",
    "actor_rollout_ref.rollout.response_length=16",
    "actor_rollout_ref.model.dtype=float32",
    "sft.model.dtype=float32",
)


def test_its_configuration_runs_from_end_to_end_with_few_puzzles(tmp_path, monkeypatch, capsys):
    """`spa run walk_way_3.yaml`, shortened and with the built-in model: stopped at the gate, then told to go on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name, tag, length = "walk_way_3", "WalkWay3", 3  # 6 puzzles: fewer than validation asks for
    write_env(name, tmp_path)
    options = ["gate.on_failure=stop", f"custom_envs.{tag}.env_config.length={length}", *SHORT]
    assert spa(["run", f"{name}.yaml", *options]) == 2
    told = capsys.readouterr().err
    warning = f"builtin:tiny was not trained for {tag}: it knows only the actions and states of frozen_lake, sokoban, sudoku"
    assert told.index(warning) < told.index(
        "World-model gate: failed on unseen puzzles"
    )  # before any work
    assert "also trains on validation puzzles" in told
    assert spa(["run", f"{name}.yaml", *options, "gate.on_failure=warn"]) == 0
    assert (tmp_path / f"runs/{name}/ppo/global_step_1").is_dir()


@pytest.mark.parametrize("name", ["My_Game", "../x", "class"])
def test_names_that_are_none(name, tmp_path):
    with pytest.raises(ConfigError, match="not a valid module name"):
        write_env(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("gem", "games of a library of that name"),
        ("signal", "Python has a standard module"),
        ("numpy", "an installed package has a module of that name"),
        ("smol", "a shipped configuration"),
        ("frozen_lake", "FrozenLake is the tag of a shipped environment"),
    ],
)
def test_names_that_stand_for_something_else_are_refused(name, what, tmp_path):
    with pytest.raises(ConfigError, match=f"'{name}' is taken, because .*{what}.*my_{name}"):
        write_env(name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "walk.yaml").write_text("mine")
    with pytest.raises(ConfigError, match="files already exist: "):
        write_env("walk", tmp_path)
    assert (tmp_path / "walk.yaml").read_text() == "mine" and not (tmp_path / "walk.py").exists()

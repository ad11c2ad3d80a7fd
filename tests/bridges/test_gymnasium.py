import re
import sys

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium import spaces

from spa.config.load import load_config
from spa.envs.registry import make_env
from spa.errors import ConfigError
from spa.run.hashing import own_code
from spa_integrations.games.shown import uncoloured
from tests.bridges.conformance import failures

pytestmark = pytest.mark.filterwarnings("ignore")


def newest(name):
    """The id of the newest version of an environment that this Gymnasium has."""
    return max(key for key in gymnasium.registry if key.rpartition("-v")[0] == name)


@pytest.mark.parametrize("name", ["Taxi", "FrozenLake", "CliffWalking", "Blackjack"])
def test_small_games_conform(name):
    assert failures(f"gymnasium:{newest(name)}") == []


def test_the_seed_is_gymnasiums_own():
    env, plain = make_env(f"gymnasium:{newest('Taxi')}"), gymnasium.make(newest("Taxi"))
    for seed in range(5):
        env.reset(seed=seed)
        assert env.state_text("coords") == f"Observation: {plain.reset(seed=seed)[0]}"


def test_colours_of_a_drawing_become_marks():
    env = make_env("gymnasium:FrozenLake-v1", {"is_slippery": False})
    assert env.reset(seed=0)[0] == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert env.step("Right")[0] == "S[F]FF\nFHFH\nFFFH\nHFFG"
    assert uncoloured("\x1b[34;1mR\x1b[0m \x1b[35mG\x1b[0m \x1b[32m_\x1b[0m") == "(R) {G} *_*"
    # Taxi nests colours where the taxi is in a marked cell, and a later mark is its own.
    nested = "\x1b[35m\x1b[43mR\x1b[0m\x1b[0m: | : :\x1b[34;1mG\x1b[0m"
    assert uncoloured(nested) == "{[R]}: | : :(G)"


def test_rules_end_before_the_tables():
    for name in ("FrozenLake", "Taxi", "CliffWalking", "Blackjack"):
        env = make_env(f"gymnasium:{newest(name)}")
        env.reset(seed=0)
        rules = env.instruction("grid")
        assert "Space" not in rules and "Move left" not in rules


def test_the_way_to_the_goal_is_a_success_and_a_hole_is_not():
    env = make_env("gymnasium:FrozenLake-v1", {"is_slippery": False})
    for way, won in (("Down Down Right Right Down Right", True), ("Right Down", False)):
        env.reset(seed=0)
        results = [env.step(label) for label in way.split()]
        assert (results[-1][2], results[-1][4]["success"]) == (True, won)


def test_legal_actions_follow_the_mask():
    env = make_env(f"gymnasium:{newest('Taxi')}")
    env.reset(seed=0)
    assert set(env.legal_actions()) < set(env.action_names()) and env.legal_actions()


def test_noise_is_its_own():
    env = make_env("gymnasium:FrozenLake-v1")

    def walk(noise):
        env.reset(seed=0, options={"noise_seed": noise})
        return [env.step("Right")[0] for _ in range(4)]

    assert walk(1) == walk(1) and len({tuple(walk(noise)) for noise in range(8)}) > 1


class Dig(gymnasium.Env):
    """Its puzzle comes from the global generator."""

    observation_space, action_space = spaces.Discrete(1000), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = int(np.random.randint(1000))
        return self.number, {}

    def step(self, action):
        return self.number, 0.0, True, False, {}


def test_a_puzzle_from_global_generators_is_that_of_its_seed():
    gymnasium.register("SpaTestDig-v0", entry_point=Dig)
    try:
        env = make_env("gymnasium:SpaTestDig-v0")

        def puzzle(seed, noise):
            return env.reset(seed=seed, options={"noise_seed": noise})[0]

        assert puzzle(5, 1) == puzzle(5, 2) != puzzle(6, 1)
    finally:
        del gymnasium.registry["SpaTestDig-v0"]


def test_a_copys_noise_is_that_of_its_seed():
    env = make_env("gymnasium:FrozenLake-v1")
    env.reset(seed=0, options={"noise_seed": 5})

    def walk(game):
        return tuple(game.step("Right")[0] for _ in range(8))

    assert len({walk(env.clone(seed)) for seed in range(8)}) > 1
    assert walk(env.clone(3)) == walk(env.clone(3))
    assert walk(env.clone()) == walk(env)


class Spoken(gymnasium.Env):
    """Says a word; the same word back ends it."""

    observation_space, action_space = spaces.Text(20), spaces.Discrete(2, start=5)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word = "left" if self.np_random.random() < 0.5 else "right"
        return self.word, {}

    def step(self, action):
        return self.word, 1.0, True, False, {"is_success": (action == 6) == (self.word == "right")}


def test_observations_that_are_text_and_labels_of_ones_own():
    gymnasium.register("SpaTestSpoken-v0", entry_point=Spoken)
    try:
        env = make_env("gymnasium:SpaTestSpoken-v0", {"action_names": ["go left", "go right"]})
        word, _ = env.reset(seed=1)
        assert word in ("left", "right") and env.step(f"go {word}")[4]["success"]
        assert failures("gymnasium:SpaTestSpoken-v0") == []
        with pytest.raises(ConfigError, match="action_names has 3 names"):
            make_env("gymnasium:SpaTestSpoken-v0", {"action_names": ["a", "b", "c"]})
        for text, told in (
            ("[No, Yes]", "action_names has False, which is not a string"),
            ("[null, b]", "action_names has None, which is not a string"),
            ("[1:30, b]", "action_names has 90, which is not a string"),
            ("AB", "action_names must be a list of strings, got 'AB'"),
            ("[Hit, hit ]", "action_names has 'hit' twice"),
            ("['', b]", "action_names has ''"),
            ("[a || b, c]", "action_names has 'a || b'"),
        ):
            with pytest.raises(ConfigError, match=re.escape(told)):
                make_env("gymnasium:SpaTestSpoken-v0", {"action_names": yaml.safe_load(text)})
    finally:
        del gymnasium.registry["SpaTestSpoken-v0"]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("CartPole-v1", {}, "a few integers"),
        ("FrozenLake-v9", {}, "did you mean 'FrozenLake-v1'"),
        ("FrozenLake-v1", {"sizes": 3}, "sizes"),
    ],
)
def test_what_cannot_be_played_is_said(name, options, says):
    with pytest.raises(ConfigError, match=says):
        make_env(f"gymnasium:{name}", options)


def test_a_module_that_registers_the_game_is_imported(tmp_path, monkeypatch):
    (tmp_path / "mazes_of_mine.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.toy_text import FrozenLakeEnv\n"
        "gymnasium.register('SpaTestMaze-v0', entry_point=FrozenLakeEnv)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    env_type = "gymnasium:mazes_of_mine:SpaTestMaze-v0"
    config = (
        f"{{env_type: '{env_type}', max_actions_per_traj: 6, env_config: {{is_slippery: false}}}}"
    )
    cfg = load_config("tiny", [f"+custom_envs.Maze={config}"])
    try:
        assert make_env(env_type).reset(seed=0)[0] == "[S]FFF\nFHFH\nFFFH\nHFFG"
        spec = cfg.custom_envs["Maze"]
        assert make_env(spec.env_type, spec.env_config).action_names()[2] == "Action 2"
        assert own_code("custom_envs.Maze.env_type", env_type).keys() == {
            "the code of gymnasium",
            "the code of mazes_of_mine",
        }
        with pytest.raises(ConfigError, match="'gymnasium:mazes_of_mine:SpaTestMaze-v0'"):
            make_env("mazes_of_mine:SpaTestMaze-v0")
        with pytest.raises(ConfigError, match="cannot import 'mazes_of_nobody'"):
            make_env("gymnasium:mazes_of_nobody:SpaTestMaze-v0")
        with pytest.raises(ConfigError, match=r"set env_type to spa\.envs\.frozen_lake:FrozenLake"):
            make_env("gymnasium:spa.envs.ids:spa/FrozenLake-v0")
    finally:
        gymnasium.registry.pop("SpaTestMaze-v0", None)

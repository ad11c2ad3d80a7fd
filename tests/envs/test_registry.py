import subprocess
import sys

import pytest

from spa.envs.frozen_lake import FrozenLake
from spa.envs.registry import make_env
from spa.errors import ConfigError


def test_options_reach_the_environment():
    env = make_env("frozen_lake", {"size": 6, "is_slippery": False})
    assert isinstance(env, FrozenLake) and env.size == 6 and not env.is_slippery
    assert isinstance(make_env("frozen_lake", None), FrozenLake)
    assert isinstance(make_env("spa.envs.frozen_lake:FrozenLake", {"size": 5}), FrozenLake)


@pytest.mark.parametrize(
    "env_type, config, message",
    [
        ("frozen_lak", {}, "did you mean 'frozen_lake'"),
        ("no_such_package.env:Env", {}, "cannot import"),
        ("spa.envs.frozen_lake:Lake", {}, "no TextEnv"),
        ("spa.envs.frozen_lake:", {}, "no TextEnv"),
        (":", {}, "cannot import"),
        (["sokoban"], {}, "is unknown"),
    ],
)
def test_errors_name_the_nearest(env_type, config, message):
    with pytest.raises(ConfigError, match=message):
        make_env(env_type, config)


def test_the_registry_imports_no_environment():
    code = (
        "import sys, spa.envs.registry;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'spa_games.sokoban')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("env_type", "words"),
    [
        (
            "openspiel:catch",
            "The supported libraries of games are gem, gymnasium, .*`spa env list --libraries`",
        ),
        ("gymnasum:Taxi-v3", "Did you mean 'gymnasium:TASK'"),
        (
            "each_once:catch",
            "no TextEnv named 'catch'; the module has EachOnce. To choose which game your own class plays",
        ),
        ("broken_module:Game", "cannot import 'broken_module': NameError: name 'nothing'"),
    ],
)
def test_a_type_that_is_not_there_says_what_is(env_type, words, tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=words):
        make_env(env_type)

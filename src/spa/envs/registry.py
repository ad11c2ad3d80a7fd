"""Environment types by name. A class is imported when its type is first asked for."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from spa.envs.base import TextEnv
from spa.envs.bridges import BRIDGES
from spa.envs.options import nearest
from spa.errors import ConfigError
from spa.own import find_modules_beside_user

ENVS: dict[str, str] = {
    "bandit": "spa.envs.bandit:Bandit",
    "countdown": "spa.envs.countdown:Countdown",
    "frozen_lake": "spa.envs.frozen_lake:FrozenLake",
    "game_2048": "spa.envs.game_2048:Game2048",
    "metamathqa": "spa.envs.metamathqa:MetamathQA",
    "rubiks_cube": "spa.envs.rubiks_cube:RubiksCube",
    "sokoban": "spa.envs.sokoban:Sokoban",
    "sudoku": "spa.envs.sudoku:Sudoku",
    "webshop": "spa.envs.webshop:WebShop",
}


def env_class(env_type: str) -> type[TextEnv]:
    """The class of an environment type: a name of `ENVS`, a bridge's `library:task`, or a path `my_pkg.env:MyEnv`.

    Raises ConfigError if there is no such type, module or class, or if it is no TextEnv.
    """
    if not isinstance(env_type, str) or (env_type not in ENVS and ":" not in env_type):
        raise ConfigError(f"unknown env_type {env_type!r}; {nearest(env_type, ENVS)} or a path 'package.module:Class'")
    bridge, _, task = env_type.partition(":")
    if bridge in BRIDGES and not task:
        raise ConfigError(f"env_type {env_type!r} names no task; `spa envs list {bridge}` lists them")
    shipped = BRIDGES[bridge].path if bridge in BRIDGES else ENVS.get(env_type)
    module_name, _, class_name = (shipped or env_type).partition(":")
    if shipped is None:
        find_modules_beside_user()
    try:
        module = importlib.import_module(module_name)
    except (ModuleNotFoundError, ValueError) as error:
        raise ConfigError(f"env_type {env_type!r}: cannot import {module_name!r}: {error}") from error
    found = getattr(module, class_name, None)
    if not (inspect.isclass(found) and issubclass(found, TextEnv)):
        raise ConfigError(f"env_type {env_type!r}: {module_name!r} has no TextEnv named {class_name!r}")
    return found


def make_env(env_type: str, env_config: Mapping[str, Any] | None = None) -> TextEnv:
    """A new environment of the type `env_type` with the options `env_config`.

    Raises ConfigError that names an unknown option and the nearest valid one, or an option with an impossible value.
    """
    found = env_class(env_type)
    options = {str(name): value for name, value in (env_config or {}).items()}
    bridge, _, task = env_type.partition(":")
    if bridge in BRIDGES:
        return found(**{"task": task, **options})  # the options that are its own only the library knows
    parameters = inspect.signature(found).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        valid = [parameter.name for parameter in parameters]
        unknown = [name for name in options if name not in valid]
        if unknown:
            hints = "; ".join(f"unknown option {name!r}, {nearest(name, valid)}" for name in unknown)
            raise ConfigError(f"env_config of {env_type!r}: {hints}")
    return found(**options)

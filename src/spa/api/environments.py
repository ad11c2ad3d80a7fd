"""Environments by name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from spa.config.load import load_config
from spa.config.schema import Config, EnvSpec
from spa.envs.base import TextEnv
from spa.envs.registry import env_types, make_env
from spa.errors import ConfigError, EnvFault, nearest

# The attribute in which an environment keeps its settings. `play` reads the limits from it.
_SPEC = "_spa_spec"


def make(name: str, *, config: str | Path | Config = "base", **options: Any) -> TextEnv:
    """Return a new Gymnasium environment whose states are text.

    Args:
        name: a tag of the configuration (`spa env list`), an environment type, `LIBRARY:TASK` for another library's
            game, or `module:Class` for your own.
        config: the configuration that defines the tags.
        options: options of the environment class. They replace those of the tag.

    Raises ConfigError for an unknown name or an impossible option.

    Example: `env = spa.make("FrozenLake", size=4); state, info = env.reset(seed=0)`
    """
    spec = find_spec(name, config if isinstance(config, Config) else load_config(config))
    options = {**(spec.env_config or {}), **options}
    try:
        env = make_env(spec.env_type, options)
    except EnvFault as error:
        raise ConfigError(str(error)) from error
    # Written into the instance's dict, because the `__setattr__` of a wrapper or of a class may
    # refuse new attributes.
    vars(env)[_SPEC] = replace(spec, env_config=options)
    return env


def find_spec(name: str, cfg: Config) -> EnvSpec:
    """The settings of a tag, or of an environment type with its default options. Raises ConfigError
    for neither."""
    if name in cfg.custom_envs:
        return cfg.custom_envs[name]
    # A name with a colon is LIBRARY:TASK or module:Class, which only `make_env` can check.
    if name not in env_types() and ":" not in name:
        known = [*cfg.custom_envs, *env_types()]
        raise ConfigError(
            f"there is no environment {name!r}. Run `spa env list` to print all environments, or name "
            f"your own class as 'module:Class'; {nearest(name, known)}"
        )
    return EnvSpec(env_type=name)


def spec_of(env: TextEnv) -> EnvSpec:
    """The settings that `make` made an environment with; default limits for an object that you made
    yourself."""
    return getattr(env, _SPEC, None) or EnvSpec(
        env_type=f"{type(env).__module__}:{type(env).__qualname__}"
    )

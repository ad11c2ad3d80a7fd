"""Create environments by name, and find their settings."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from spa.config.load import load_config
from spa.config.schema import Config, EnvSpec
from spa.envs.base import TextEnv
from spa.envs.registry import env_types, make_env
from spa.errors import ConfigError, EnvFault, nearest

log = logging.getLogger(__name__)

# Names of the attributes that `make` sets on an environment. `_SPEC` contains its settings, from
# which `play` reads the limits. `_TAG` contains the name that was passed to `make`, which is the
# tag of its episodes.
_SPEC = "_spa_spec"
_TAG = "_spa_tag"


def make(name: str, *, config: str | Path | Config = "base", **options: Any) -> TextEnv:
    """Return a new Gymnasium environment whose states are text.

    Args:
        name: a tag of the configuration (`spa env list`), an environment type, `LIBRARY:TASK` for
            another library's game, or `module:Class` for your own.
        config: the configuration that defines the tags.
        options: options of the environment class, which override the tag's options.

    Raises ConfigError for an unknown name or an invalid option.

    Example: `env = spa.make("FrozenLake", size=4); state, info = env.reset(seed=0)`
    """
    spec = find_spec(name, config if isinstance(config, Config) else load_config(config))
    options = {**(spec.env_config or {}), **options}
    try:
        env = make_env(spec.env_type, options)
    except EnvFault as error:
        raise ConfigError(str(error)) from error
    # Write to the instance's dict, because `__setattr__` of a wrapper or class may reject new
    # attributes.
    vars(env)[_SPEC] = replace(spec, env_config=options)
    vars(env)[_TAG] = name
    return env


def find_spec(name: str, cfg: Config) -> EnvSpec:
    """Return the settings of the tag `name`, or of the environment type `name` with default
    options. Raises ConfigError if there is neither. Names with a colon (`LIBRARY:TASK`,
    `module:Class`) are not checked."""
    if name in cfg.custom_envs:
        return cfg.custom_envs[name]
    # Only `make_env` can check names with a colon (LIBRARY:TASK or module:Class).
    if name not in env_types() and ":" not in name:
        known = [*cfg.custom_envs, *env_types()]
        raise ConfigError(
            f"there is no environment {name!r}. Run `spa env list` to print all environments, or name "
            f"your own class as 'module:Class'; {nearest(name, known)}"
        )
    return EnvSpec(env_type=name)


def text_env(env: object) -> TextEnv:
    """Return the TextEnv inside `env`, without its wrappers. Raises ConfigError if there is none."""
    found = getattr(env, "unwrapped", env)
    if isinstance(found, TextEnv):
        if found is not env:
            log.warning("%s is played without its wrappers: %s", tag_of(found), env)
        return found
    task = getattr(getattr(env, "spec", None), "id", "ID")
    raise ConfigError(
        f"env is a {type(env).__name__}, and `spa` plays environments whose states are text. Give a "
        f"name that spa.make takes (for Gymnasium's, such as 'gymnasium:{task}'), or an instance of "
        "a class derived from spa.TextEnv"
    )


def spec_of(env: TextEnv) -> EnvSpec:
    """Return the settings with which `make` created an environment. An environment that was not
    created by `make` has default limits."""
    return getattr(env, _SPEC, None) or EnvSpec(
        env_type=f"{type(env).__module__}:{type(env).__qualname__}"
    )


def tag_of(env: TextEnv) -> str:
    """Return the name with which `make` created an environment, or the class name of an environment
    that was not created by `make`."""
    return getattr(env, _TAG, None) or type(env).__name__

"""Convert overrides from Python values to `key=value` texts of the configuration."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spa.config import load
from spa.config.schema import Config
from spa.errors import ConfigError

Overrides = Sequence[str] | Mapping[str, Any]
"""`["trainer.total_training_steps=20"]` or `{"trainer.total_training_steps": 20}`."""


def load_config(name: str | Path, overrides: Overrides = ()) -> Config:
    """Load the configuration `name` (a shipped name, a YAML file, or a folder with one) with
    `overrides`. Raises a ConfigError that lists every problem."""
    return load.load_config(name, as_texts(overrides))


def as_texts(overrides: Overrides) -> list[str]:
    """Convert overrides to `key=value` texts."""
    if not isinstance(overrides, Mapping):
        # A single string is one override, not a sequence of characters.
        return [overrides] if isinstance(overrides, str) else list(overrides)
    return [f"{key}={value_text(value)}" for key, value in overrides.items()]


def as_list(name: str, value: Any, kind: type = object) -> list[Any]:
    """Return the items of `value` as a list. A single string, number or mapping gives a list of one
    item. Raises ConfigError if an item is not of type `kind`. `name` is the argument's name, for
    the message."""
    single = isinstance(value, str | Mapping) or not isinstance(value, Iterable)
    items = [value] if single else list(value)
    for item in items:
        if not isinstance(item, kind):
            raise ConfigError(
                f"{name} must be of type {kind.__name__}, or a list of such values, got {item!r}"
            )
    return items


def value_text(value: Any) -> str:
    """Write a Python value in the grammar of overrides: `None` is written as null, and strings are
    quoted."""
    if value is None or isinstance(value, bool):
        # YAML writes these values in lower case.
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return (
            "{" + ",".join(f"{_key(key)}:{value_text(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(value_text, value)) + "]"
    if isinstance(value, int | float):
        return str(value)
    # Always quoted: a string such as `1e-6` or `null` would otherwise get another type.
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _key(key: Any) -> str:
    # Special characters in keys cannot be quoted, only escaped, such as the colon in
    # `shaped_reward:no_idling`.
    return re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", str(key))

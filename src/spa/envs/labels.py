"""Labelled actions, numbered from 1."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from spa.errors import ConfigError

LONGEST_LABEL = 200
"""Maximum length of a label in characters; longer texts are not compared with labels."""


def find_label(text: object, names: tuple[str, ...]) -> int | None:
    """The number of the label that equals `text`, ignoring case and surrounding white space; None
    if no label does."""
    if not isinstance(text, str) or len(text) > LONGEST_LABEL:
        return None
    wanted = text.strip().lower()
    return next(
        (number for number, name in enumerate(names, start=1) if name.lower() == wanted), None
    )


def action_index(action: object, names: tuple[str, ...]) -> int | None:
    """The index in `names`, from 0, of an action given by its number or label; None if there is no
    such action."""
    if isinstance(action, str):
        action = find_label(action, names)
    # True is an int in Python and would pass as action 1.
    if isinstance(action, bool) or not isinstance(action, int | np.integer):
        return None
    return int(action) - 1 if 1 <= action <= len(names) else None


def require_labels(where: str, names: object) -> tuple[str, ...]:
    """Validate action names and strip white space. Raises ConfigError that begins with `where`
    unless they are a list of distinct strings that a response can contain as actions."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ConfigError(f"{where} must be a list of strings, got {names!r}")
    labels: list[str] = []
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(
                f"{where} has {name!r}, which is not a string. YAML reads words such as No, On, "
                "null and 1:30 as other types. Put the name in quotes."
            )
        label = name.strip()
        # `||` separates actions, and tags of the response format have angle brackets.
        marks = ("||", "<", ">", "\n")
        if not label or len(label) > LONGEST_LABEL or any(mark in label for mark in marks):
            raise ConfigError(
                f"{where} has {name[:80]!r}. Use a short name without '||', '<', '>' and line breaks."
            )
        # Labels are read in any letter case, so the second of two equal ones is never chosen.
        if label.lower() in map(str.lower, labels):
            raise ConfigError(f"{where} has {label!r} twice. Give every action another name.")
        labels.append(label)
    return tuple(labels)


def label_space(size: int) -> spaces.Space[Any]:
    """The action space for `size` labels."""
    return spaces.Discrete(size, start=1)

"""Actions that have a label each and are numbered from 1."""

from typing import Any

import numpy as np
from gymnasium import spaces

LONGEST_LABEL = 200
"""Characters; a longer text is not compared with the labels."""


def find_label(text: object, names: tuple[str, ...]) -> int | None:
    """The number of the label that `text` is, whatever its case and the white space around it; None
    if it is none."""
    if not isinstance(text, str) or len(text) > LONGEST_LABEL:
        return None
    wanted = text.strip().lower()
    return next(
        (number for number, name in enumerate(names, start=1) if name.lower() == wanted), None
    )


def action_index(action: object, names: tuple[str, ...]) -> int | None:
    """The place in `names`, from 0, that an action (its number or its label) stands for; None if
    for none."""
    if isinstance(action, str):
        action = find_label(action, names)
    # True is an int in Python and would pass as action 1.
    if isinstance(action, bool) or not isinstance(action, int | np.integer):
        return None
    return int(action) - 1 if 1 <= action <= len(names) else None


def label_space(size: int) -> spaces.Space[Any]:
    """The action space of `size` labels."""
    return spaces.Discrete(size, start=1)

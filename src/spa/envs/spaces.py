"""Gymnasium spaces for text: any string up to a maximum length."""

import string
from typing import Any

from gymnasium import spaces

MAX_STATE = 100_000
"""Maximum length of a state text in characters. A longer text indicates a bug in the
environment."""

_PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " "


class FreeText(spaces.Text):
    """Every string of at most `max_length` characters, in any alphabet; samples are short ASCII
    strings."""

    def __init__(self, max_length: int) -> None:
        # `charset` restricts samples only: `contains` accepts any alphabet.
        super().__init__(max_length, min_length=0, charset=_PRINTABLE)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a string within the length limit."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return a random printable ASCII string of at most 32 characters."""
        if mask is not None or probability is not None:
            return super().sample(mask=mask, probability=probability)
        size = int(self.np_random.integers(min(self.max_length, 32) + 1))
        return "".join(self.np_random.choice(self.character_list, size=size))


def text_space(max_length: int = MAX_STATE) -> spaces.Space[Any]:
    """Return the space of state texts, or of free-text actions."""
    return FreeText(max_length)

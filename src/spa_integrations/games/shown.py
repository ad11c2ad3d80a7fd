"""Helpers that show Gymnasium environments as text: colours of grids, rules, and action names."""

import inspect
import re
from typing import Any

from gymnasium import spaces

from spa_integrations.games.text import clean

NAMES = {
    "Blackjack": ("Stick", "Hit"),
    "CliffWalking": ("Up", "Right", "Down", "Left"),
    "CliffWalkingSlippery": ("Up", "Right", "Down", "Left"),
    "FrozenLake": ("Left", "Down", "Right", "Up"),
    "FrozenLake8x8": ("Left", "Down", "Right", "Up"),
    "Taxi": ("South", "North", "East", "West", "Pickup", "Dropoff"),
}
"""Action names from Gymnasium's documentation; the environments themselves only number actions."""
MARKS = {4: "[{}]", 34: "({})", 35: "{{{}}}"}
"""ANSI colour -> mark: 4 stands for any background (41 to 47), 34 is blue, and 35 is magenta. Other
colours are marked by asterisks."""
MARKED = "Marked cells: [x] by the background, (x) blue, {x} magenta, *x* otherwise."
MOST_NUMBERS = 200
"""Maximum number of entries of an observed array."""


def uncoloured(grid: str) -> str:
    """Replace the colours of a terminal rendering by marks around the coloured text."""
    # ANSI colours: `ESC [ 41 m x ESC [ 0 m`. A colour carries meaning (the player's cell), so it
    # becomes a mark instead of being dropped. Colours may nest; then each adds its mark.
    coloured = r"((?:\x1b\[[\d;]*[1-9][\d;]*m)+)([^\x1b]*)(?:\x1b\[0?m)+"
    return re.sub(r"\x1b\[[\d;]*m", "", re.sub(coloured, _marks, grid))


def _marks(match: re.Match[str]) -> str:
    text = match[2]
    # The innermost colour comes last.
    for codes in reversed(re.findall(r"\x1b\[([\d;]+)m", match[1])):
        text = _mark(codes, text)
    return text


def _mark(colour: str, text: str) -> str:
    # Backgrounds (41 to 47) all become 4, so that a background sorts before the foreground colours.
    codes = [
        int(code) // 10 if 40 < int(code) < 48 else int(code) for code in colour.split(";") if code
    ]
    return next((MARKS[code] for code in sorted(codes) if code in MARKS), "*{}*").format(text)


def is_small(space: Any) -> bool:
    """Return whether a space's values are text or a few integers."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        return all(map(is_small, space.values() if isinstance(space, spaces.Dict) else space))
    # Images are integer arrays as well, but are too large to be shown as text.
    if isinstance(space, spaces.Box):
        return (
            space.dtype is not None
            and space.dtype.kind in "iu"
            and int(space.high.size) <= MOST_NUMBERS
        )
    return isinstance(
        space, spaces.Text | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    )


def rules(env: Any, *, has_grid: bool) -> str:
    """Return the introduction from the environment's docstring, at most 1,500 characters. If
    `has_grid` is True, an explanation of the marks for colours is added."""
    # Gymnasium's docstrings describe the game first, then its spaces in tables.
    text = re.split(
        r"\n\s*#+ (?:Action|Observation) Space", inspect.getdoc(type(env)) or type(env).__name__
    )[0]
    text = clean(re.sub(r"!\[.*?\]\(.*?\)|^\s*#+ .*$", "", text, flags=re.M)[:1500])
    return f"{text}\n{MARKED}" if has_grid else text

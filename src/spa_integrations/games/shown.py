"""Text form of Gymnasium environments: coloured grids, small arrays, rules, and names of
actions."""

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
"""Marks for colours: a background (41 to 47), blue, magenta; asterisks for any other."""
MARKED = "Marked cells: [x] by the background, (x) blue, {x} magenta, *x* otherwise."
MOST_NUMBERS = 200
"""Size of the largest array that is written out."""


def uncoloured(grid: str) -> str:
    """Convert the colours of a terminal rendering into marks."""
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
    # Pixels are integers too, but there are far more than a text can show.
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
    """Introduction of the environment's own documentation, up to its tables, at most 1,500
    characters."""
    # Gymnasium's docstrings describe the game first, then its spaces in tables.
    text = re.split(
        r"\n\s*#+ (?:Action|Observation) Space", inspect.getdoc(type(env)) or type(env).__name__
    )[0]
    text = clean(re.sub(r"!\[.*?\]\(.*?\)|^\s*#+ .*$", "", text, flags=re.M)[:1500])
    return f"{text}\n{MARKED}" if has_grid else text

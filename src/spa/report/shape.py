"""What a line of a trajectory file must look like before a page is made of it.

These files are plain text that a crash, a disk or an editor may have changed, and every reader
would otherwise have to expect anything anywhere.
"""

from collections.abc import Callable
from math import isfinite
from types import NoneType
from typing import Any

Shape = type | tuple[type, ...] | list[Any] | dict[str, Any] | Callable[[Any], bool]
"""A type or several; a list with the shape of its items; a mapping, where `key?` may be missing and
`*` is any other key; or a function that says whether a value fits."""

LARGEST = 1e15
"""No reward and no rate is larger; a page and a database can hold it."""


def NUMBER(value: Any) -> bool:
    """Whether this is a number that can be added up and shown."""
    return isinstance(value, int | float) and abs(value) <= LARGEST and isfinite(value)


TEXT = (str, NoneType)

_REPLY: Shape = {
    "well_formed": bool, "think?": TEXT, "observation?": TEXT, "prediction?": TEXT, "actions?": [str],
    "options?": [list],
}  # fmt: skip
_TURN: Shape = {
    "state": str, "next_state": str, "reply": _REPLY, "reward": NUMBER, "penalty": NUMBER, "world_state?": TEXT,
    "next_world_state?": TEXT, "executed?": [str], "infos?": [dict],
}  # fmt: skip
HEAD: Shape = {
    "episode_id?": str, "tag?": str, "mode?": str, "stop": str, "success": bool, "turns": [_TURN], "puzzle_hash?": TEXT,
    "error?": TEXT,
}  # fmt: skip
"""An episode without its messages and tokens."""

_TOKENS = ("token_ids", "sampled", "logprobs", "turn_index")
_REST: Shape = {
    "messages?": [{"role": str, "content": str}], "turns": [{"reply_text": str}],
    **{f"{name}?": (list, NoneType) for name in _TOKENS},
}  # fmt: skip


TREE: Shape = {
    "turn": int, "chosen": int,
    "imagined": [{"actions": [str], "state": TEXT, "right": (bool, NoneType), "root": int, "depth": int}],
}  # fmt: skip
"""What a planner recorded of a turn."""


def fits(value: Any, shape: Any) -> bool:
    """Whether a value that JSON can hold has a shape."""
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        named = {name.removesuffix("?"): part for name, part in shape.items() if name != "*"}
        return (
            all(name.endswith(("?", "*")) or name in value for name in shape)
            and all(fits(value[name], part) for name, part in named.items() if name in value)
            and (
                "*" not in shape
                or all(fits(other, shape["*"]) for key, other in value.items() if key not in named)
            )
        )
    if isinstance(shape, type | tuple):
        return isinstance(value, shape)
    return shape(value)


_RATES: Shape = {"*": {"*": NUMBER}}  # moment -> Pass@k -> rate
_SUMMARY: Shape = {
    "methods?": {"*": _RATES}, "seeds?": [{"methods?": {"*": _RATES}}], "reference?": str, "descriptions?": {"*": str},
    "episodes?": {"*": {"*": NUMBER}}, "seconds?": {"*": NUMBER},
    "difference?": {"*": {"mean": NUMBER, "low": NUMBER, "high": NUMBER, "n?": NUMBER}},
}  # fmt: skip


def is_summary(value: Any) -> bool:
    """Whether this is what `summary.json` of a comparison holds, as far as reports look at it."""
    return fits(value, _SUMMARY)


def is_head(row: Any) -> bool:
    """Whether this is an episode, as far as lists and counts of episodes look at it."""
    return fits(row, HEAD)


def is_episode(row: Any) -> bool:
    """Whether this is an episode, as far as a page that replays it looks at it."""
    if not (is_head(row) and fits(row, _REST)):
        return False
    columns = {name: row[name] for name in _TOKENS if row.get(name) is not None}
    ids = [*columns.get("token_ids", ()), *columns.get("turn_index", ())]
    plans = [plan for turn in row["turns"] for plan in turn["reply"].get("options", ())]
    return (
        len({len(column) for column in columns.values()}) < 2
        and fits(ids, [int])
        and all(
            len(plan) == 2 and fits(plan[0], [str]) and isinstance(plan[1], str) for plan in plans
        )
    )

"""Validate the structure of JSON records of a run: episodes, planner records and summaries.

These files are plain text that a crash, a disk or an editor may have damaged. Without validation,
all code that reads them would have to handle arbitrary values.
"""

from collections.abc import Callable
from math import isfinite
from types import NoneType
from typing import Any

Check = Callable[[Any], bool]
"""A predicate that validates the shape of a JSON value."""

LARGEST = 1e15
"""Largest absolute value of a valid number."""


def NUMBER(value: Any) -> bool:
    """Return whether a value is a finite number of at most `LARGEST` in absolute value."""
    # Browsers reject NaN and infinity in JSON.
    return isinstance(value, int | float) and abs(value) <= LARGEST and isfinite(value)


def shape(of: Any) -> Check:
    """Build a predicate that returns whether a value has a shape.

    A shape is a type, a tuple of types, a list with the shape of its items, a predicate, or a
    mapping from keys to shapes. In a mapping, a key that ends in `?` is optional, and `*` gives the
    shape of all other keys. Build each predicate only once, because a large run has a million
    values to validate.
    """
    if isinstance(of, list):
        item = shape(of[0])
        return lambda value: isinstance(value, list) and all(map(item, value))
    if isinstance(of, dict):
        needed = {name for name in of if not name.endswith(("?", "*"))}
        named = {name.removesuffix("?"): shape(part) for name, part in of.items()}
        # Other keys are accepted with any value, unless `*` gives them a shape.
        other = named.pop("*", None)
        return lambda value: (
            isinstance(value, dict)
            and needed <= value.keys()
            and all(check(part) for key, part in value.items() if (check := named.get(key, other)))
        )
    return (lambda value: isinstance(value, of)) if isinstance(of, type | tuple) else of


TEXT = (str, NoneType)

_RESPONSE = {
    "well_formed": bool, "think?": TEXT, "observation?": TEXT, "prediction?": TEXT, "actions?": [str],
    "options?": [list],
}  # fmt: skip
_TURN = {
    "state": str, "next_state": str, "response": _RESPONSE, "reward": NUMBER, "penalty": NUMBER, "world_state?": TEXT,
    "next_world_state?": TEXT, "executed?": [str], "infos?": [dict],
}  # fmt: skip
is_head = shape({
    "episode_id?": str, "tag?": str, "mode?": str, "stop": str, "success": bool, "turns": [_TURN], "puzzle_hash?": TEXT,
    "error?": TEXT,
})  # fmt: skip
"""Return whether a value is an episode. Only the keys for lists and statistics are validated, not
messages and tokens."""

_TOKENS = ("token_ids", "sampled", "logprobs", "turn_index")
_has_rest = shape({
    "messages?": [{"role": str, "content": str}], "turns": [{"response_text": str}],
    **{f"{name}?": (list, NoneType) for name in _TOKENS},
})  # fmt: skip
_are_whole = shape([int])
_are_texts = shape([str])

is_tree = shape({
    "turn": int, "chosen": int,
    "imagined": [{"actions": [str], "state": TEXT, "right": (bool, NoneType), "root": int, "depth": int}],
})  # fmt: skip
"""Return whether a value is a planner's record of a turn."""

_RATES = {"*": {"*": NUMBER}}  # time of measurement ("before", "after") -> Pass@k -> rate
is_summary = shape({
    "methods?": {"*": _RATES}, "seeds?": [{"methods?": {"*": _RATES}}], "reference?": str, "descriptions?": {"*": str},
    "episodes?": {"*": {"*": NUMBER}}, "seconds?": {"*": NUMBER},
    "difference?": {"*": {"mean": NUMBER, "low": NUMBER, "high": NUMBER, "n?": NUMBER, "over?": str}},
})  # fmt: skip
"""Return whether a value is the content of a comparison's `summary.json`. Only the keys that
reports use are validated."""


def is_episode(row: Any) -> bool:
    """Return whether a value is an episode. All keys that a replay uses are validated."""
    if not (is_head(row) and _has_rest(row)):
        return False
    columns = {name: row[name] for name in _TOKENS if row.get(name) is not None}
    ids = [*columns.get("token_ids", ()), *columns.get("turn_index", ())]
    plans = [plan for turn in row["turns"] for plan in turn["response"].get("options", ())]
    return (
        # Token columns are parallel, so all columns that are present must have the same length.
        len({len(column) for column in columns.values()}) < 2
        and _are_whole(ids)
        and all(
            len(plan) == 2 and _are_texts(plan[0]) and isinstance(plan[1], str) for plan in plans
        )
    )

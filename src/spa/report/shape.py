"""What a line of a trajectory file must look like before a page is made of it.

These files are plain text that a crash, a disk or an editor may have changed, and every reader would otherwise have to
expect anything anywhere.
"""

from types import NoneType
from typing import Any

Shape = type | tuple[type, ...] | list[Any] | dict[str, Any]
"""A type or several; a list with the shape of its items; or a mapping, where `key?` may be missing."""

NUMBER = (int, float)
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


def fits(value: Any, shape: Any) -> bool:
    """Whether a value that JSON can hold has a shape."""
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            fits(value[key], part) if (key := name.removesuffix("?")) in value else name.endswith("?")
            for name, part in shape.items()
        )
    return isinstance(value, shape)


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
        and all(len(plan) == 2 and fits(plan[0], [str]) and isinstance(plan[1], str) for plan in plans)
    )

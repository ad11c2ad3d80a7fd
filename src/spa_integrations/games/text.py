"""Helpers for all integrations: clean texts, serialize puzzles, and imitate example moves."""

import json
import re
from collections.abc import Mapping
from typing import Any

from spa.errors import ConfigError, nearest

ANSWER_LIMIT = 1000
"""Maximum length of an action in characters."""

# Tags of the response format inside a state would end the block that quotes the state.
_TAGS = re.compile(r"<(/?(?:think|answer|observation|prediction))>", re.I)
# All ASCII control characters except tab and newline.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def clean(text: str) -> str:
    """Clean up a library's text so that it can be used as a state. Removes control characters, and
    white space at line ends and at both ends of the text. Tags of the response format get round
    instead of angle brackets. The result is never empty."""
    # Lone surrogates cannot be encoded; they become question marks.
    text = _CONTROL.sub("", text.encode("utf-8", "replace").decode())
    text = "\n".join(line.rstrip() for line in text.splitlines())
    return _TAGS.sub(r"(\1)", text).strip() or "(nothing)"


def content(value: Any) -> str:
    """Serialize data to a text that depends only on its content. Mappings and sets are sorted, and
    other objects are represented by their attributes."""
    return json.dumps(_plain(value, 0), ensure_ascii=False, sort_keys=True)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    # The depth is limited, because objects may refer to each other in cycles.
    if depth > 8:
        return type(value).__name__
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    # Sets are sorted, because their order differs between processes, but the hash of this text must
    # not.
    if isinstance(value, set | frozenset):
        return sorted((_plain(item, depth + 1) for item in value), key=str)
    # NumPy arrays and scalars have `tolist`.
    if hasattr(value, "tolist"):
        return value.tolist()
    return {"type": type(value).__name__, **_plain(getattr(value, "__dict__", {}), depth + 1)}


def similar(forms: list[str], rng: Any) -> str:
    """Sample a move that imitates a random one of `forms`, with other numbers and single capital
    letters. `rng` is a NumPy generator."""
    # `[1 2]` is a move; `[row col]` is a placeholder for one.
    forms = [form for form in forms if re.search(r"\d|\b[A-Z]\b", form)] or forms
    form = forms[int(rng.integers(len(forms)))]
    numbers = [int(digits) for digits in re.findall(r"\d+", form)]
    # Several numbers (`[1 2]`) are probably coordinates, so they exceed the example's largest by at
    # most one. A single number is at most 9, or at most the example's if that is larger.
    most = max(numbers, default=0) + 1 if len(numbers) > 1 else max([9, *numbers])
    form = re.sub(r"\d+", lambda _: str(int(rng.integers(most + 1))), form)
    return re.sub(r"\b[A-Z]\b", lambda _: "ABCDEFGHIJ"[int(rng.integers(10))], form)


def require_task(bridge: str, task: object, known: Any) -> str:
    """Return `task` if it is one of `known`; otherwise raise ConfigError, which suggests the
    nearest name."""
    if task not in known:
        close = nearest(task, known)
        hint = close if close.startswith("did") else f"list all tasks with `spa env list {bridge}`"
        raise ConfigError(f"env_type '{bridge}:{task}': there is no task {task!r} ({hint})")
    return str(task)

"""Problems of a configuration, each with its key and a message for people."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from spa.config.fields import Invalid, flatten
from spa.config.schema import schema_keys

WORDS = {
    "dataclass_type": "a section with keys",
    "mapping_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "greater than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "less_than": "less than {lt:g}",
}
"""Type of a pydantic error -> the expected value, in words for users of YAML."""


class Problems:
    """Problems found so far, each with the key that is wrong and a message."""

    def __init__(self) -> None:
        self.items: list[tuple[str, str]] = []

    def add(self, key: str, text: str) -> None:
        """Add a problem with the value of `key`. With an empty key, the line is only the
        message."""
        self.items.append((key, text))

    @property
    def lines(self) -> list[str]:
        """One line per problem."""
        return [f"{key}: {text}" if key else text for key, text in self.items]

    def __len__(self) -> int:
        return len(self.items)


def add_validation_errors(
    problems: Problems, error: ValidationError, tree: Mapping[str, Any]
) -> None:
    """Add a problem for each error that pydantic found in `tree`. Errors for the alternatives of
    one key, as in `str | tuple`, are combined into one problem."""
    by_key: dict[str, tuple[list[str], str]] = {}
    for item in error.errors():
        key = _dotted(item["loc"], tree)
        details = item.get("ctx", {})
        got = f", got {show(item['input'])}"
        # Pydantic marks an invalid key by `[key]` at the end of its location.
        if item["loc"][-1] == "[key]":
            name = show(item["input"])
            problems.add(
                _dotted(item["loc"][:-2], tree),
                f"the key {name} is not a string. YAML reads names such as On, No, null and 1:30 as "
                "other types. Put the name in quotes.",
            )
        elif item["type"] == "unexpected_keyword_argument":
            # For an unknown section, each of its keys is reported.
            for leaf in flatten({key: item["input"]}):
                problems.add(leaf, f"unknown key{suggestion(leaf)}")
        elif item["type"] == "missing":
            problems.add(key, "missing")
        elif item["type"] == "value_error":
            # Raised by a rule of the schema (`Invalid`) or by a check in `fields`.
            reason = details["error"]
            problems.add(f"{key}.{reason.key}" if isinstance(reason, Invalid) else key, str(reason))
        elif item["type"] == "literal_error":
            # Pydantic's `'a', 'b' or 'c'` -> `a, b, c`
            expected = details["expected"].replace(" or ", ", ").replace("'", "")
            close = difflib.get_close_matches(str(item["input"]), expected.split(", "), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            problems.add(key, f"must be one of {expected}{got}{hint}")
        else:
            words = WORDS.get(item["type"], item["msg"].removeprefix("Input should be "))
            wanted = words.format(**details)
            # Pydantic reports one error for each alternative of `str | tuple`. They are joined
            # below as `a string or a list`.
            by_key.setdefault(key, ([], got))[0].append(wanted)
    for key, (wanted, got) in by_key.items():
        problems.add(key, f"must be {' or '.join(dict.fromkeys(wanted))}{got}")


def _dotted(location: Sequence[int | str], tree: Any) -> str:
    """Convert the location of a pydantic error to a dotted key. Names of union members, which
    pydantic adds to the location, are left out."""
    key = ""
    for part in location:
        if isinstance(tree, Mapping):
            key = f"{key}.{part}" if key else str(part)
            tree = tree.get(part)
        elif isinstance(tree, list) and isinstance(part, int):
            key = f"{key}[{part}]"
            tree = tree[part] if part < len(tree) else None
    return key


def suggestion(path: str) -> str:
    """Return a text such as `; did you mean seed.val?` with the schema keys closest to an unknown
    key, or "" if there are none or too many."""
    known = [name for name, _, _ in schema_keys()]
    head, _, last = path.rpartition(".")
    siblings = [name for name in known if name.rpartition(".")[0] == head]
    # Candidates, from the most to the least likely: a similar key in the same section, a similar
    # path, a path without its first parts, the same last part elsewhere, a remotely similar path.
    close = (
        [
            f"{head}.{name}".strip(".")
            for name in _similar(last, [name.rpartition(".")[2] for name in siblings], 0.75)
        ]
        or _similar(path, known, 0.85)
        or [name for name in known if name.endswith(f".{path}")]
        or [name for name in known if name.rpartition(".")[2] == last]
        or _similar(path, known, 0.6)
    )
    # More than three suggestions are no help.
    return f"; did you mean {' or '.join(close)}?" if 0 < len(close) <= 3 else ""


def _similar(name: str, options: Sequence[str], cutoff: float) -> list[str]:
    return difflib.get_close_matches(name, options, n=1, cutoff=cutoff)


def show(value: Any) -> str:
    """Describe a value and its kind, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the string {value!r}"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"the list {list(value)!r}"
    return repr(value)

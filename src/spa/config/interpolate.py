"""`${...}` in a composed tree: resolved where it can be, within bounds; one that cannot is a problem of its key."""

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from spa.config.convert import Problems

MOST_CHARACTERS = 1_000_000
MOST_VALUES = 20_000
MOST_DEPTH = 40

ORIGINAL_VARIABLES = {
    "MODE": "base",
    "MODEL": "1.5B",
    "RENDER_MODE": "text_with_coordinates",
    "OUTPUT_DIR": "sftdata",
    "BT_NUM": "5",
    "BASE_DIR": "checkpoints",
}
"""What the original's scripts set before its files are read, and with which value for PPO."""

_VARIABLE = re.compile(r"\$\{oc\.env:\s*(\w+)\s*\}")
_REFERENCE = re.compile(r"\$\{([^${}:]+)\}")


class _TooLarge(Exception):
    """The resolved tree would be larger than any configuration."""


def resolve(tree: dict[Any, Any], problems: Problems, notes: list[str]) -> dict[Any, Any]:
    """`tree` with its interpolations resolved; those that cannot be are noted in `problems` and left out.

    A variable of the original's scripts that is not set has the value that its PPO script gives it; `notes` says so.
    """
    tree = _with_original_variables(tree, notes)
    try:
        _check_growth(tree)
        root, values = OmegaConf.create(tree), 0
    except _TooLarge as error:
        problems.add(str(error), f"its ${{...}} add up to more than {MOST_CHARACTERS:,} characters")
        return {}
    except (OmegaConfBaseException, RecursionError) as error:
        problems.add(getattr(error, "full_key", None) or "", f"its value cannot be read: {_first_line(error)}")
        return {}

    def walk(node: Any, path: str) -> Any:
        nonlocal values
        values += 1
        if values > MOST_VALUES or path.count(".") > MOST_DEPTH:
            raise _TooLarge(path)
        if isinstance(node, ListConfig):
            return [entry(node, index, f"{path}[{index}]") for index in range(len(node))]
        if not isinstance(node, DictConfig):
            return node
        found = {name: entry(node, name, f"{path}.{name}" if path else str(name)) for name in node}
        return {name: value for name, value in found.items() if value is not _LOST}

    def entry(node: Any, name: Any, key: str) -> Any:
        try:
            return walk(node[name], key)
        except RecursionError:
            problems.add(key, f"cannot resolve {node._get_node(name)}: it leads back to itself")
        except OmegaConfBaseException as error:
            problems.add(key, f"cannot resolve {node._get_node(name)}: {_first_line(error)}")
        return _LOST

    try:
        return walk(root, "")
    except _TooLarge as error:
        key = str(error) if len(str(error)) <= 60 else f"{str(error)[:60]}..."
        problems.add(key, f"is nested too deeply or past {MOST_VALUES:,} values, with every ${{...}} written out")
        return {}


_LOST = object()


def _with_original_variables(node: Any, notes: list[str]) -> Any:
    if isinstance(node, dict):
        return {name: _with_original_variables(value, notes) for name, value in node.items()}
    if isinstance(node, list):
        return [_with_original_variables(value, notes) for value in node]
    return _VARIABLE.sub(lambda match: _with_default(match, notes), node) if isinstance(node, str) else node


def _with_default(match: re.Match[str], notes: list[str]) -> str:
    name = match[1]
    if name not in ORIGINAL_VARIABLES:
        return match[0]
    value = ORIGINAL_VARIABLES[name]
    if OmegaConf.create({"value": f"${{oc.env:{name},''}}"}).value == "":
        note = f"the environment variable {name} is not set; {value} is taken, as in the original's PPO script"
        notes += [note] if note not in notes else []
    return f"${{oc.env:{name},'{value}'}}"


def _check_growth(tree: Mapping[Any, Any]) -> None:
    """Raise _TooLarge for texts that multiply by naming others twice, which a few lines suffice for."""
    sizes: dict[str, int] = {}

    def size_at(path: str, at: Any, under_way: frozenset[str]) -> int:
        if path in sizes or path in under_way:
            return sizes.get(path, 0)  # a circle is found when it is resolved
        sizes[path] = size_of(at, path, under_way | {path})
        if sizes[path] > MOST_CHARACTERS:
            raise _TooLarge(path)
        return sizes[path]

    def size_of(node: Any, path: str, under_way: frozenset[str]) -> int:
        if isinstance(node, Mapping):
            return 1 + sum(size_at(f"{path}.{name}", value, under_way) for name, value in node.items())
        if isinstance(node, list):
            return 1 + sum(size_at(f"{path}.{index}", value, under_way) for index, value in enumerate(node))
        if not isinstance(node, str):
            return 1
        named = [_absolute(match[1], path) for match in _REFERENCE.finditer(node)]
        return 1 + len(node) + sum(size_at(name, _at(tree, name), under_way) for name in named)

    for name, value in tree.items():
        size_at(str(name), value, frozenset())


def _absolute(name: str, path: str) -> str:
    """`.a` and `..a` as seen from `path`, by the whole path."""
    bare = name.lstrip(".")
    up = len(name) - len(bare)
    return ".".join([*path.split(".")[: len(path.split(".")) - up], bare]) if up else bare


def _at(tree: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(tree, list) and part.isdecimal() and int(part) < len(tree):
            tree = tree[int(part)]
        elif isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        else:
            return None
    return tree


def _first_line(error: BaseException) -> str:
    """What an error of OmegaConf says, in one line and in words for people."""
    text = (str(error).splitlines() or [type(error).__name__])[0]
    variable = re.search(r"Environment variable '(\w+)' not found", text)
    if "RecursionError" in text:
        return "it leads back to itself"
    if variable:
        return f"the environment variable {variable[1]} is not set; set it, or write ${{oc.env:{variable[1]},VALUE}}"
    return text[:300]

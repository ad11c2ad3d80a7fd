"""Plain nested mappings to schema dataclasses and back. Every problem is collected, not only the first."""

import dataclasses
import difflib
import functools
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from spa.config.key import Key
from spa.config.schema import Config


class Problems:
    """A growing list of problems, each with the key that it is about."""

    def __init__(self) -> None:
        self.items: list[tuple[str, str]] = []

    def add(self, key: str, text: str) -> None:
        """Note a problem of `key`."""
        self.items.append((key, text))

    @property
    def lines(self) -> list[str]:
        """One line per problem."""
        return [f"{key}: {text}" if key else text for key, text in self.items]

    def __len__(self) -> int:
        return len(self.items)


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Field name -> annotation of a schema dataclass, `Annotated` kept."""
    return get_type_hints(cls, include_extras=True)


def schema_keys(cls: type = Config, prefix: str = "") -> Iterable[tuple[str, Any, Key | None]]:
    """Every key of the schema in order: dotted path, type without annotation, and its `Key` (None for sections).

    Mappings appear once, with `*` for the key.
    """
    for name, hint in field_types(cls).items():
        path, kind, key = f"{prefix}{name}", *_strip(hint)
        yield path, kind, key
        if dataclasses.is_dataclass(kind):
            yield from schema_keys(kind, path + ".")  # type: ignore[arg-type]
        elif get_origin(kind) is Mapping and dataclasses.is_dataclass(value := get_args(kind)[1]):
            yield from schema_keys(value, path + ".*.")  # type: ignore[arg-type]


def convert(kind: Any, value: Any, path: str, problems: Problems) -> Any:
    """`value` as the annotated type `kind`. Problems are noted, and the result is then of no use."""
    kind, key = _strip(kind)
    if dataclasses.is_dataclass(kind):
        return _section(kind, value, path, problems)  # type: ignore[arg-type]
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(args, key, value, path, problems)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            return problems.add(path, f"expected a mapping, got {show(value)}")
        return {name: convert(args[1], item, f"{path}.{name}", problems) for name, item in value.items()}
    if origin is tuple:
        return _tuple(args, value, path, problems)
    if origin is Literal:
        if value not in args or isinstance(value, bool):
            problems.add(path, f"must be one of {', '.join(map(str, args))}; got {show(value)}{_closest(value, args)}")
        return value
    if kind is Any:
        return value
    return _scalar(kind, key, value, path, problems)


def to_plain(value: Any) -> Any:
    """Schema values as dicts, lists and scalars, ready for YAML."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> leaf value. Empty mappings are leaves."""
    out: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            out |= flatten(value, f"{prefix}{name}.")
        else:
            out[f"{prefix}{name}"] = value
    return out


def suggestion(path: str) -> str:
    """The schema keys closest to an unknown one, as `; did you mean ...?`, or ""."""
    known = [name for name, _, _ in schema_keys()]
    head, _, last = path.rpartition(".")
    siblings = [name for name in known if name.rpartition(".")[0] == head]
    close = (
        [f"{head}.{name}".strip(".") for name in _similar(last, [name.rpartition(".")[2] for name in siblings], 0.75)]
        or _similar(path, known, 0.85)
        or [name for name in known if name.endswith(f".{path}")]
        or [name for name in known if name.rpartition(".")[2] == last]
        or _similar(path, known, 0.6)
    )
    return f"; did you mean {' or '.join(close)}?" if 0 < len(close) <= 3 else ""


def _similar(name: str, options: Sequence[str], cutoff: float) -> list[str]:
    return difflib.get_close_matches(name, options, n=1, cutoff=cutoff)


def show(value: Any) -> str:
    """A value and its kind, for messages."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {value!r}"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"the list {list(value)!r}"
    return repr(value)


def _strip(hint: Any) -> tuple[Any, Key | None]:
    if get_origin(hint) is Annotated:
        kind, *extras = get_args(hint)
        return kind, next((extra for extra in extras if isinstance(extra, Key)), None)
    return hint, None


def _section(cls: type, value: Any, path: str, problems: Problems) -> Any:
    if not isinstance(value, Mapping):
        return problems.add(path, f"expected a section with keys, got {show(value)}")
    hints, prefix, before = field_types(cls), path + "." if path else "", len(problems)
    for name in value:
        if name not in hints:
            for leaf in flatten({name: value[name]}, prefix):
                problems.add(leaf, f"unknown key{suggestion(leaf)}")
    parts = {
        name: convert(hint, value[name], f"{prefix}{name}", problems) for name, hint in hints.items() if name in value
    }
    for item in dataclasses.fields(cls):
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        if required and item.name not in value:
            problems.add(f"{prefix}{item.name}", "missing")
    return None if len(problems) > before else cls(**parts)


def _union(args: tuple[Any, ...], key: Key | None, value: Any, path: str, problems: Problems) -> Any:
    """Null if it is allowed; else the first alternative that fits. The last alternative's problem is reported."""
    if value is None and types.NoneType in args:
        return None
    options = [arg for arg in args if arg is not types.NoneType]
    trial = Problems()
    for option in options:
        trial = Problems()
        annotated = Annotated[option, key] if key else option
        result = convert(annotated, value, path, trial)
        if not trial:
            return result
    if len(options) > 1:
        trial = Problems()
        trial.add(path, f"expected {' or '.join(map(type_name, options))}, got {show(value)}")
    problems.items += trial.items
    return None


def _tuple(args: tuple[Any, ...], value: Any, path: str, problems: Problems) -> Any:
    if not isinstance(value, list | tuple):
        return problems.add(path, f"expected a list, got {show(value)}")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(convert(args[0], item, f"{path}[{index}]", problems) for index, item in enumerate(value))
    if len(value) != len(args):
        return problems.add(path, f"expected a list of {len(args)} values, got {len(value)}")
    pairs = enumerate(zip(args, value, strict=True))
    return tuple(convert(arg, item, f"{path}[{index}]", problems) for index, (arg, item) in pairs)


def _scalar(kind: type, key: Key | None, value: Any, path: str, problems: Problems) -> Any:
    if kind is str and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # names such as 2048 or 42 need no quotes
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return problems.add(path, f"expected {type_name(kind)}, got {show(value)}")
    if isinstance(value, str) and "\0" in value:
        problems.add(path, f"holds a NUL character, which no file, module or model has in its name: {value!r}")
    elif key and (problem := key.problem(value)):
        problems.add(path, problem)
    return value


def type_name(kind: Any) -> str:
    """A type in words, as messages and the reference page show it."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " | ".join(map(str, args))
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(arg) for arg in args)
    if origin is tuple:
        inner = dict.fromkeys(
            type_name(arg).removeprefix("a ").removeprefix("an ") for arg in args if arg is not Ellipsis
        )
        return (
            f"a list of {', '.join(inner)}s" if get_origin(args[0]) is not Literal else f"a list of {', '.join(inner)}"
        )
    if origin is Mapping:
        return "a mapping"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", types.NoneType: "null"}
    return names.get(kind, "a value")


def _closest(value: Any, options: tuple[Any, ...]) -> str:
    close = _similar(str(value), [str(option) for option in options], 0.6)
    return f"; did you mean {close[0]}?" if close else ""

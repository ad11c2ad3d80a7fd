"""The schema as a list of dotted keys, and settings as plain trees."""

import dataclasses
import functools
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from spa.config.fields import Key
from spa.config.schema import Config


# Cached, because evaluating the annotations of a class is slow.
@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Field name -> annotation of a schema dataclass, including `Annotated`."""
    return get_type_hints(cls, include_extras=True)


def schema_keys(cls: type = Config, prefix: str = "") -> Iterable[tuple[str, Any, Key | None]]:
    """Every key of the schema in order: dotted path, type without annotation, and its `Key` (None
    for sections).

    Mappings appear once, with `*` for the key.
    """
    for name, hint in field_types(cls).items():
        # get_args(Annotated[T, a, b]) is (T, a, b).
        key = next((extra for extra in get_args(hint)[1:] if isinstance(extra, Key)), None)
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        path = f"{prefix}{name}"
        yield path, kind, key
        if dataclasses.is_dataclass(kind):
            yield from schema_keys(kind, path + ".")  # type: ignore[arg-type]
        elif get_origin(kind) is Mapping and dataclasses.is_dataclass(value := get_args(kind)[1]):
            yield from schema_keys(value, path + ".*.")  # type: ignore[arg-type]


def type_name(kind: Any) -> str:
    """Format a type for the reference page: `int`, `str | None`, `tuple[float, float]`."""
    origin = get_origin(kind)
    args = get_args(kind)
    if origin is Annotated:
        return type_name(args[0])
    if origin is Literal:
        return " | ".join(map(str, args))
    # `Optional[X]` and `X | None` have different origins.
    if origin in (Union, types.UnionType):
        return " | ".join(type_name(arg) for arg in args)
    if origin is tuple:
        return f"tuple[{', '.join('...' if arg is Ellipsis else type_name(arg) for arg in args)}]"
    if origin is Mapping:
        return "mapping"
    return "None" if kind is types.NoneType else kind.__name__


def to_plain(value: Any) -> Any:
    """Convert settings to dicts, lists and scalars, ready for YAML."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def to_yaml(cfg: Config) -> str:
    """The whole configuration as YAML that `load_config` reads back."""
    return yaml.safe_dump(to_plain(cfg), sort_keys=False, allow_unicode=True, width=120)

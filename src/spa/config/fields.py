"""Building blocks of the schema: the decorator `section`, the annotation `Key` of a setting, and
validated string types."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_args, get_origin

import pydantic.dataclasses
from pydantic import AfterValidator, ConfigDict, Field, Strict

T = TypeVar("T")

Affects = Literal["semantics", "numerics", "paths", "logging"]
"""The effect of a setting. `semantics`: the results or the precision of a stage. `numerics`: memory
and speed, which change at most the last digits of results. `paths`: where files are, which
checkpoints are kept, and what is started. `logging`: what is measured, logged and shown."""

# Beyond 2**53 a float64 skips whole numbers.
MOST_INT = 2**53
MOST_FLOAT = 1e9
"""Limits for numbers without a bound of their own. Larger numbers are probably typos, on which
tensors, timers and JSON would fail in different ways."""

Content = Literal["value", "model", "file", "data", "checkpoint"]
"""The input that a key adds to fingerprints: its value, or the content of the model, file, data set
or checkpoint that the value names."""


class Invalid(ValueError):
    """Raised if a section's settings break a rule. `key` is the setting to change, and `text` the
    problem."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key


def _not_blank(separator: str) -> str:
    if not separator.strip():
        raise ValueError("must not be blank, because the separator splits an answer into actions")
    return separator


def _output_folder(path: str) -> str:
    if "://" in path:
        raise ValueError(
            f"must be a local folder, got {path}; to copy checkpoints to a URL, set "
            "trainer.default_hdfs_dir=URL"
        )
    if re.search(r"[\x00-\x1f]", path):
        raise ValueError(f"must be a folder name without control characters, got {path!r}")
    return path


def _run_folder(path: str) -> str:
    # Matches an empty name, and one like `-x`, which other programs read as an option.
    if re.match(r"\s*(-|$)", path):
        raise ValueError(
            f"must be a folder name that is not empty and does not begin with -, got {path!r}"
        )
    return _output_folder(path)


def _device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ValueError(f"must be auto, cpu, cuda or cuda:N, got {name!r}")
    return name


def is_secret(name: str) -> bool:
    """Return whether a setting, header or environment variable with this name probably contains a
    secret."""
    # Matches `api_key`, `HF_TOKEN`, `db.password` and `Authorization`, but not `max_tokens` or
    # `key_format`.
    pattern = r"api.?key|secret|passw|authori[sz]ation|credential|headers|(^|[._-])(token|key|sig)$"
    return re.search(pattern, name, re.IGNORECASE) is not None


def _without_secret(address: str, login: str, instead: str) -> str:
    # The second pattern matches `?token=…` and `&api_key=…`.
    if re.match(login, address) or re.search(
        r"[?&][^=&]*(key|token|secret|passw|sig)[^=&]*=", address, re.IGNORECASE
    ):
        raise ValueError(
            f"the URL contains a password or key, and every run would save the URL; {instead}"
        )
    return address


def _copy_url(address: str) -> str:
    if "://" not in address:
        raise ValueError(f"must be a URL such as s3://…, got {address}")
    instead = (
        "put the secret into an environment variable of the file system, or into fsspec's "
        "configuration file"
    )
    # A name before @ without a password is a user or a container, not a secret.
    return _without_secret(address, r"[^/]*://[^/@]*:[^/]*@", instead)


def _server_url(address: str) -> str:
    # Anything before an @ counts as a secret: a token may be given as the user name.
    return _without_secret(
        address,
        r"[^/]*://[^?#]*@",
        "put the secret into an environment variable, and name the variable in api_key_env",
    )


Name = Annotated[str, Field(coerce_numbers_to_str=True)]
"""A string that may be written without quotes if it looks like a number, such as the tag 2048."""

Separator = Annotated[str, AfterValidator(_not_blank)]
OutputFolder = Annotated[Name, AfterValidator(_output_folder)]
Folder = Annotated[Name, AfterValidator(_run_folder)]
Device = Annotated[str, AfterValidator(_device)]
CopyURL = Annotated[str, AfterValidator(_copy_url)]
ServerURL = Annotated[str, AfterValidator(_server_url)]


@dataclass(frozen=True, slots=True)
class Key:
    """Annotation of a setting: its help, what it affects, and the range that pydantic validates.

    Bounds are inclusive (`ge`, `le`) or exclusive (`gt`); null satisfies every bound.
    """

    help: str
    affects: Affects
    content: Content = "value"
    ge: float | None = None
    gt: float | None = None
    le: float | None = None

    # With this attribute, pydantic replaces this annotation by the annotations that `__iter__`
    # yields.
    __is_annotated_types_grouped_metadata__ = True

    def __iter__(self) -> Iterator[Any]:
        """Yield the bounds as pydantic's own annotations."""
        yield from Field(ge=self.ge, gt=self.gt, le=self.le).metadata

    def range(self) -> str:
        """Format the bounds for the reference page, such as ` >= 1`; "" without bounds."""
        bounds = ((">=", self.ge), (">", self.gt), ("<=", self.le))
        return "".join(f" {sign} {bound:g}" for sign, bound in bounds if bound is not None)


def flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a tree to dotted key -> leaf value. Empty mappings are leaves."""
    out: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            out |= flatten(value, f"{prefix}{name}.")
        else:
            out[f"{prefix}{name}"] = value
    return out


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def section(cls: type[T]) -> type[T]:
    """Make a frozen dataclass that pydantic validates: it rejects unknown keys and infinities, and
    converts lists to tuples.

    Numbers and booleans are not converted: neither `true` to 1 nor `"3"` to 3. Numbers without
    bounds of their own are limited by `MOST_INT` and `MOST_FLOAT`.
    """
    for name, hint in cls.__annotations__.items():
        inner, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        # `int | None` -> {int}
        members = {*(get_args(inner) if isinstance(inner, UnionType) else (inner,))} - {NoneType}
        if members <= {int, float, bool}:
            most = MOST_INT if int in members else MOST_FLOAT
            ends = () if bool in members else (Field(ge=-most, le=most),)
            # The key's own bounds (in `extras`) come last, because they override the general ones.
            cls.__annotations__[name] = Annotated[(inner, Strict(), *ends, *extras)]
    settings = ConfigDict(extra="forbid", allow_inf_nan=False)
    decorate: Any = pydantic.dataclasses.dataclass(
        frozen=True, slots=True, kw_only=True, config=settings
    )
    return decorate(cls)

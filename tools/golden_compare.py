"""Names that changed between two commits, and the first value in which two results differ."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import yaml

SEPARATORS = {
    "metrics": "/",
    "configuration": ".",
    "columns": ".",
    "files": "/",
    "commands": " ",
    "presets": " ",
}
ANCHORED = ("configuration", "presets")
"""Sections whose names match from the start of a name, not anywhere in it."""


@dataclass(frozen=True)
class Section:
    """The changed names of one kind."""

    separator: str
    anchored: bool = False
    renamed: tuple[tuple[str, str], ...] = ()
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)

    def rename(self, name: str) -> str:
        """The new name, after all renamings in their order."""
        for old, new in self.renamed:
            name = _replaced(name, old, new, self.separator, self.anchored)
        return name

    def matches(self, name: str, patterns: Sequence[str]) -> bool:
        """Return whether one of the patterns occurs in the name."""
        return any(
            _pattern(pattern, self.separator, self.anchored).search(name) for pattern in patterns
        )

    def value(self, name: str, value: Any) -> Any:
        """The new spelling of a value, or of the items of a list, under a name (the old or the new one)."""
        if isinstance(value, list):
            return [self.value(name, item) for item in value]
        for pattern, spellings in self.values.items():
            if isinstance(value, str | bool | int) and self.matches(
                self.rename(name), [self.rename(pattern)]
            ):
                value = spellings.get(value, value)
        return value


@dataclass(frozen=True)
class Names:
    """The changed names of every kind: what `golden_names.yaml` holds."""

    sections: Mapping[str, Section]

    def __getitem__(self, name: str) -> Section:
        return self.sections[name]

    @classmethod
    def read(cls, text: str) -> "Names":
        """Parse YAML. Raises ValueError for a section or entry that does not exist."""
        document = yaml.safe_load(text) or {}
        if unknown := document.keys() - SEPARATORS.keys():
            raise ValueError(f"golden_names.yaml: unknown section {', '.join(sorted(unknown))}")
        sections = {}
        for name, separator in SEPARATORS.items():
            entries = document.get(name) or {}
            if unknown := entries.keys() - {"renamed", "removed", "added", "values"}:
                raise ValueError(
                    f"golden_names.yaml: {name} has unknown entries {', '.join(sorted(unknown))}"
                )
            sections[name] = Section(
                separator=separator,
                anchored=name in ANCHORED,
                renamed=tuple((entries.get("renamed") or {}).items()),
                removed=tuple(entries.get("removed") or ()),
                added=tuple(entries.get("added") or ()),
                values=entries.get("values") or {},
            )
        return cls(sections)

    def since(self, base: "Names") -> "Names":
        """The changes that `base` does not have: those between that commit and this one."""
        return Names({name: _since(section, base[name]) for name, section in self.sections.items()})


def _since(section: Section, base: Section) -> Section:
    values = {
        name: {
            old: new for old, new in spellings.items() if base.values.get(name, {}).get(old) != new
        }
        for name, spellings in section.values.items()
    }
    return Section(
        separator=section.separator,
        anchored=section.anchored,
        renamed=tuple(entry for entry in section.renamed if entry not in base.renamed),
        removed=section.removed,
        added=section.added,
        values=values,
    )


@lru_cache(maxsize=4096)
def _pattern(pattern: str, separator: str, anchored: bool) -> re.Pattern[str]:
    edge = re.escape(separator)
    body = edge.join(
        f"([^{edge}]+)" if part == "*" else re.escape(part) for part in pattern.split(separator)
    )
    return re.compile(f"{'^' if anchored else f'(?:^|(?<={edge}))'}{body}(?={edge}|$)")


def _replaced(name: str, old: str, new: str, separator: str, anchored: bool) -> str:
    match = _pattern(old, separator, anchored).search(name)
    if match is None:
        return name
    wildcards = iter(match.groups())
    parts = [next(wildcards) if part == "*" else part for part in new.split(separator)]
    return name[: match.start()] + separator.join(parts) + name[match.end() :]


DROPPED = re.compile(
    r"(^|[/.])(elapsed_s|unix_time|seconds|timing_s|perf|memory|throughput|tokens_per_s)([/.]|$)"
)
"""Metrics and columns of results that hold times, memory and throughput."""


def canonical_metrics(row: Mapping[str, Any], names: Section) -> dict[str, Any]:
    """A line of metrics in new names, without times, memory and throughput."""
    kept = {key: value for key, value in row.items() if not DROPPED.search(key)}
    return {
        names.rename(key): value
        for key, value in kept.items()
        if not names.matches(key, names.removed)
    }


def canonical_record(
    record: Any, names: Section, metrics: Section | None = None, path: str = ""
) -> Any:
    """An episode, an example or a result in new names, however deep; keys are renamed by their dotted path.

    With `metrics`, keys that are names of metrics are renamed as those are.
    """
    if isinstance(record, list):
        return [
            names.value(path, item)
            for item in (canonical_record(item, names, metrics, path) for item in record)
        ]
    if not isinstance(record, dict):
        return names.value(path, record)
    renamed = {}
    for key, value in record.items():
        where = f"{path}.{key}" if path else str(key)
        removed = names.matches(where, names.removed) or (
            metrics and metrics.matches(str(key), metrics.removed)
        )
        if removed or DROPPED.search(str(key)):
            continue
        new = (
            names.rename(where).rpartition(".")[2]
            if isinstance(key, str) and "." not in key
            else key
        )
        if metrics is not None and isinstance(new, str):
            new = metrics.rename(new)
        renamed[new] = canonical_record(value, names, metrics, where)
    return renamed


def canonical_configuration(flat: Mapping[str, Any], names: Section) -> dict[str, Any]:
    """Dotted keys and values of a configuration in new names."""
    return {
        names.rename(key): names.value(key, value)
        for key, value in flat.items()
        if not names.matches(key, names.removed)
    }


def flatten(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every leaf of a configuration; lists and empty mappings are leaves."""
    if isinstance(document, dict) and document:
        for key, value in document.items():
            yield from flatten(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, document


def difference(base: Any, tree: Any, added: Section | None = None, path: str = "") -> str | None:
    """The first value that differs, as `path: value in BASE, value here`; None if everything is bit-equal.

    Keys that only the working tree has are a difference too, unless `added` lists them.
    """
    if isinstance(base, dict) and isinstance(tree, dict):
        return _of_mappings(base, tree, added, path)
    if isinstance(base, list) and isinstance(tree, list):
        for number, (left, right) in enumerate(zip(base, tree, strict=False)):
            if differing := difference(left, right, added, f"{path}[{number}]"):
                return differing
        if len(base) != len(tree):
            return f"{path}: {len(base)} entries in BASE, {len(tree)} here"
        return None
    if isinstance(base, torch.Tensor) and isinstance(tree, torch.Tensor):
        return _of_tensors(base, tree, path)
    same = type(base) is type(tree) and (
        base.hex() == tree.hex() if isinstance(base, float) else base == tree
    )
    return None if same else f"{path}: {_short(base, tree)} in BASE, {_short(tree, base)} here"


def _of_mappings(
    base: dict[Any, Any], tree: dict[Any, Any], added: Section | None, path: str
) -> str | None:
    def inside(key: Any) -> str:
        return f"{path}: {key}" if path else str(key)

    for key, value in base.items():
        if key not in tree:
            return f"{inside(key)}: {_short(value)} in BASE, missing here"
        if differing := difference(value, tree[key], added, inside(key)):
            return differing
    for key, value in tree.items():
        if key not in base and not (added and added.matches(str(key), added.added)):
            return f"{inside(key)}: missing in BASE, {_short(value)} here"
    return None


def _of_tensors(base: torch.Tensor, tree: torch.Tensor, path: str) -> str | None:
    if base.dtype != tree.dtype or base.shape != tree.shape:
        return f"{path}: {base.dtype} {tuple(base.shape)} in BASE, {tree.dtype} {tuple(tree.shape)} here"
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[base.element_size()]
    wrong = (base.reshape(-1).view(bits) != tree.reshape(-1).view(bits)).nonzero().flatten()
    if not len(wrong):
        return None
    first = int(wrong[0])
    left = base.reshape(-1)[first].item()
    right = tree.reshape(-1)[first].item()
    return f"{path}[{first}]: {left!r} in BASE, {right!r} here ({len(wrong)} of {base.numel()} elements differ)"


def _short(value: Any, other: Any = None) -> str:
    """A value for one line; of a long text the part where it leaves the other's."""
    text = repr(value)
    start = 0
    if isinstance(value, str) and isinstance(other, str) and len(text) > 60:
        pairs = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(value, other, strict=False)
        )
        start = max(0, sum(1 for _ in pairs) - 20)
        text = repr(value[start:])
    return ("…" if start else "") + (text if len(text) <= 60 else f"{text[:59]}…")

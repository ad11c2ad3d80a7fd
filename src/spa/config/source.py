"""The user's YAML files before Hydra sees them: of a bounded size, finite, and not named by themselves.

Hydra and OmegaConf copy whatever they are given, so a file of a few lines that refers to itself or multiplies itself by
aliases would cost all memory or end in a traceback of theirs.
"""

from pathlib import Path

import yaml

from spa.errors import ConfigError, one_line

MOST_BYTES = 500_000
MOST_VALUES = 20_000  # with aliases written out; the shipped files have 1,500
MOST_DEPTH = 40

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_source(path: Path) -> None:
    """Raise ConfigError if `path`, or a file beside it that its `defaults` list names, cannot be read as a finite tree
    of a reasonable size, or is named by a file that it names."""
    _check(path, [])


def _check(path: Path, above: list[Path]) -> None:
    if path in above:
        chain = " -> ".join(file.name for file in [*above[above.index(path) :], path])
        raise ConfigError(f"cannot read {above[0]}: its `defaults` list leads back to itself ({chain}); remove one")
    text = _read(path)
    try:
        _measure(path, text)
        tree = yaml.load(text, Loader=_LOADER)
    except (yaml.YAMLError, ValueError) as error:
        said = one_line(str(error).replace('in "<unicode string>", ', "in "))
        raise ConfigError(f"cannot read {path}: {said[:300]}") from error
    for name in _named(tree):
        if name.startswith(("/", "~", ".")) or ".." in name.split("/"):
            raise ConfigError(
                f"{path}: `defaults` names the path {name!r}. Name a shipped configuration (`spa config list`) or a "
                "YAML file of the same folder, by its file name alone."
            )
        beside = path.parent / f"{name}.yaml"
        if beside.is_file():
            _check(beside, [*above, path])


def _read(path: Path) -> str:
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ConfigError(f"cannot read {path}: it has {size:,} bytes, and a configuration at most {MOST_BYTES:,}")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _measure(path: Path, text: str) -> None:
    """Count the values and the depth from the parser's events, before anything is built."""
    open_anchors: list[str | None] = []
    sizes = [0]
    known: dict[str, int] = {}
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(event.anchor)
            sizes.append(1)
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = sizes.pop(), open_anchors.pop()
            sizes[-1] += size
            if anchor is not None:
                known[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in open_anchors:
                raise ConfigError(
                    f"cannot read {path}: line {event.start_mark.line + 1}: *{event.anchor} stands inside what it names"
                )
            sizes[-1] += known.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            sizes[-1] += 1
            if event.anchor is not None:
                known[event.anchor] = 1
        if sum(sizes) > MOST_VALUES:
            raise ConfigError(
                f"cannot read {path}: it has more than {MOST_VALUES:,} values, aliases written out; name fewer"
            )
        if len(open_anchors) > MOST_DEPTH:
            raise ConfigError(f"cannot read {path}: it is nested more than {MOST_DEPTH} levels deep")


def _named(tree: object) -> list[str]:
    """The files that the `defaults` list of a file takes in."""
    entries = tree.get("defaults") if isinstance(tree, dict) else None
    names: list[str] = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, str):
            names.append(entry.partition("@")[0].removesuffix(".yaml").strip())
        elif isinstance(entry, dict):
            names += [f"{str(group).split()[-1]}/{name}" for group, name in entry.items() if str(group).strip()]
    return [name for name in names if name and name != "_self_"]

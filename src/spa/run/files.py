"""Read and write the files of a run. Files are strict JSON or YAML and are replaced atomically, and
old files are archived instead of deleted."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import yaml

MANIFEST = "manifest.json"
METRICS = "metrics.jsonl"
"""File names in a stage's folder. `MANIFEST` is the record of the stage (see `spa.run.manifest`),
and `METRICS` has its metrics without timings."""
UNMEASURED = ("other_data", "not_measured")
"""Diagnoses of a `gate.json` that has no measurements (see `spa.recipes.gate`)."""
ARCHIVE = "previous"
"""Subfolder to which archived work of a folder is moved, in numbered folders."""
OLDER_COPIES = ".older_copies"
"""Name of an empty file that marks the copies of its folder (see `spa.run.copies`) as outdated:
they contain work that has been archived since."""
TRACKER_ID = "tracker_id"
"""Name of the file with the id of a stage's run in W&B or trackio."""
LOST = "lost.jsonl"
"""Name of the file that lists the episodes that a stage skips because they failed (see
`spa.envs.limits`)."""


def scalar(value: Any) -> int | float | str | bool | None:
    """Convert a metric's value to a strict JSON type: NaN becomes None, and infinities become
    strings. One-element tensors are accepted."""
    if hasattr(value, "item"):
        value = value.item()
    return _finite(value) if isinstance(value, float) else value


def _finite(value: float) -> float | str | None:
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def jsonable(value: Any) -> Any:
    """Convert a value and all its parts to strict JSON types. Unknown objects become strings."""
    # Enums are tested before str: a StrEnum is a str, but `yaml.safe_dump` rejects it.
    if isinstance(value, Enum):
        return jsonable(value.value)
    if isinstance(value, np.generic | np.ndarray):
        return jsonable(value.tolist())
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return _finite(value)
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item) for item in value]
    return str(value)


def dump_line(row: dict[str, Any]) -> str:
    """Format a dict as one line of JSON with a newline. Text is escaped to ASCII, so that it does
    not depend on editors and locales and may contain lone surrogates."""
    try:
        # `allow_nan=False`: Python would write NaN, which is not JSON.
        return json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n"
    except (TypeError, ValueError):  # NaN, or a type that JSON lacks; conversion is slower
        return json.dumps(jsonable(row), allow_nan=False, separators=(",", ":")) + "\n"


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the valid lines of a JSON Lines file, as text and as dict. Skips lines that are
    incomplete, as after a kill, or contain no JSON object."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                yield line, row


def files_below(folder: Path) -> list[Path]:
    """Return all files in a folder and its subfolders, sorted. Follows links to folders, but reads
    each folder only once."""
    # `Path.rglob` silently skips links to folders.
    found: list[Path] = []
    visited: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        # Folders come before links, so that a folder is listed under its own path and not under the
        # path of a link to it.
        folders.sort(key=lambda name: (os.path.islink(f"{parent}/{name}"), name))
        found += (path for name in names if (path := Path(parent, name)).is_file())
    return sorted(found)


def complete_lines(path: Path, begin: int) -> bytes:
    """Read a file that is being written, from byte `begin` to its last complete line."""
    with path.open("rb") as file:
        file.seek(begin)
        text = file.read()
    return text[: text.rfind(b"\n") + 1]


def end_last_line(path: Path) -> None:
    """Add a newline at the end of a file if it is missing, as after a kill. Otherwise, appended
    text would continue the last line."""
    if path.is_file() and path.read_bytes()[-1:] not in (b"", b"\n"):
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if the file is missing, damaged, or contains anything
    else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def write_atomic(path: Path, lines: Iterable[str]) -> None:
    """Write a text file atomically: a reader sees all of it or none, even after a crash."""
    with open_atomic(path) as file:
        file.writelines(line.encode("utf-8") for line in lines)


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a file that atomically replaces `path` at the end of the block."""
    # The pid gives every process its own temporary file. `remove_leftovers` matches this pattern.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        flush_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def save_config(config: Any, path: Path) -> None:
    """Save a dataclass or dict as YAML."""
    text = yaml.safe_dump(jsonable(config), sort_keys=False, allow_unicode=True, width=120)
    write_atomic(path, [text])


def archive_files(directory: Path, paths: Sequence[Path]) -> Path:
    """Move files and folders of `directory` to its subfolder `previous/<n>/`, and return that
    folder. n is the first free number."""
    number = 1
    while (directory / ARCHIVE / str(number)).exists():
        number += 1
    target = directory / ARCHIVE / str(number)
    target.mkdir(parents=True)
    for path in paths:
        path.replace(target / path.name)
    return target


def remove_leftovers(directory: Path) -> None:
    """Remove temporary files and half-written folders of processes that were killed."""
    # `.metrics.jsonl.4711.tmp`, here or one folder below, and folders being saved or fetched.
    for pattern in (".*.[0-9]*.tmp", "*/.*.[0-9]*.tmp", ".saving_*", ".fetching"):
        for path in directory.glob(pattern):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(
                missing_ok=True
            )


def flush_directory(folder: Path) -> None:
    """Flush a folder's entries to disk. Without this, a new or renamed file may be lost in a crash,
    even if its content was flushed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

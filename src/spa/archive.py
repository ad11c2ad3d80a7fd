"""Old files make room for new ones without being deleted; names of files get to the disk."""

import os
from collections.abc import Sequence
from pathlib import Path


def archive_files(directory: Path, paths: Sequence[Path]) -> Path:
    """Move files and folders of `directory` to `previous/<n>/` below it, n being the first free number; returns that
    folder."""
    number = 1
    while (directory / "previous" / str(number)).exists():
        number += 1
    target = directory / "previous" / str(number)
    target.mkdir(parents=True)
    for path in paths:
        path.replace(target / path.name)
    return target


def flush_directory(folder: Path) -> None:
    """The names in a folder, on the disk: a file that was flushed may still be lost with its name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Lock of a run directory, so that only one process at a time works there."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from spa.errors import TrainingError

LOCK = ".lock"
PATIENCE_S = 5.0
"""Seconds to wait for the lock, because the process that holds it may be about to end."""


@contextmanager
def run_lock(directory: Path, *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Lock `directory` (created if missing) for this process.

    The kernel releases the lock when the process ends, however it ends, so there are no stale
    locks. Raises TrainingError if the directory is not writable, or if another process has the
    lock; the message names that process.
    """
    file = _open(directory)
    # Closing the file releases the lock. The file itself stays: if it were removed, two processes
    # could lock two files of the same name.
    with file:
        give_up = time.monotonic() + patience_s
        while not _taken(file):
            if time.monotonic() > give_up:
                raise TrainingError(
                    f"{directory} is in use by {_holder(directory)}. Two processes would overwrite each other's "
                    "files. Wait for that process, stop it, or choose another folder with trainer.run_dir=FOLDER."
                )
            time.sleep(0.1)
        about = {"pid": os.getpid(), "host": socket.gethostname()}
        try:
            # The file names the process that holds the lock, so it is written only after locking.
            file.truncate(0)
            file.write(json.dumps(about))
            file.flush()
        except OSError as error:
            raise _unwritable(directory, error) from error
        yield


def held(directory: Path) -> bool | None:
    """Return whether a process has locked `directory`; None if that cannot be determined on this
    machine. Does not rely on timestamps."""
    try:
        with (directory / LOCK).open(encoding="utf-8") as file:
            try:
                # This call fails while another process holds the exclusive lock. The shared lock is
                # released when the file closes.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            about = json.load(file)
    except (OSError, ValueError):
        return None
    # A lock of another host may be invisible here (NFS), so a lock that looks free proves nothing.
    return False if isinstance(about, dict) and about.get("host") == socket.gethostname() else None


def _open(directory: Path) -> IO[str]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Append mode: opening with "w" would erase the text of the process that holds the lock.
        return (directory / LOCK).open("a", encoding="utf-8")
    except OSError as error:
        raise _unwritable(directory, error) from error


def _unwritable(directory: Path, error: OSError) -> TrainingError:
    return TrainingError(
        f"cannot write to {directory}: {error.strerror or error}. Free disk space, fix the "
        "permissions, or choose another folder with trainer.run_dir=FOLDER. No file was changed."
    )


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: train unlocked rather than not at all
        return True
    return True


def _holder(directory: Path) -> str:
    try:
        about = json.loads((directory / LOCK).read_text(encoding="utf-8"))
        return f"process {about['pid']} on {about['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"

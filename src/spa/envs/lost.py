"""Episodes that are not played: marked when their environment killed or hung its process, or
declared so by hand.

A mark lies in the folder of the stage and counts from the moment it is made, at every later start
too, so that a resumed run loses what it lost before and nothing else. Delete the file's line
to have an episode played again.
"""

import json
import os
import threading
from pathlib import Path

from spa.envs.limits import EnvCrash
from spa.run.files import end_last_line

MAKING = ("making it", "reset", "puzzle_text")
"""Calls in which a puzzle is made: a mark from one of them says that it cannot be looked at either."""


class LostEpisodes:
    """Reasons by episode id, in a JSON-lines file that only grows. None: kept in memory only."""

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._lock = path, threading.Lock()
        self._marks: dict[str, tuple[str, str]] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                self._read(line)

    def reason(self, episode_id: str) -> str | None:
        """Return the reason why an episode is not played; None if it is."""
        mark = self._marks.get(episode_id)
        return mark[0] if mark else None

    def is_unmakeable(self, episode_id: str) -> bool:
        """Return whether the puzzle of an episode cannot even be built."""
        return episode_id in self._marks and self._marks[episode_id][1] in MAKING

    def mark(self, episode_id: str, error: EnvCrash) -> None:
        """Never play an episode again."""
        with self._lock:
            if episode_id in self._marks:
                return
            self._marks[episode_id] = (str(error), error.call)
            if self._path is None:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            row = {"episode_id": episode_id, "reason": str(error), "call": error.call}
            end_last_line(self._path)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
                # Write to disk at once: this process may end any moment, and the next one must skip
                # the episode.
                file.flush()
                os.fsync(file.fileno())

    def _read(self, line: str) -> None:
        try:
            row = json.loads(line)
            self._marks[str(row["episode_id"])] = (
                str(row.get("reason", "declared lost")),
                str(row.get("call", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # the line was cut off when the process ended

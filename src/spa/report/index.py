"""A table of contents of every episode of a run, in SQLite, so that 100,000 of them can be filtered and paged.

The trajectory files stay the only truth: the index holds where each episode lies in its file and what one filters by,
and is brought up to date file by file. It is a cache, beside the run or in the system's temporary directory.
"""

import json
import logging
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spa.report.reading import Run, StageFolder, TrajectoryFile, open_run, parse_head
from spa.report.replay import any_wrong
from spa.report.shape import is_episode
from spa.run.console import printable
from spa.run.files import read_lines

log = logging.getLogger(__name__)

VERSION = 4
_SCHEMA = """
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT UNIQUE, size INTEGER, changed INTEGER);
CREATE TABLE episodes (
  id INTEGER PRIMARY KEY, file INTEGER NOT NULL, start INTEGER NOT NULL, episode TEXT NOT NULL, arm TEXT NOT NULL,
  seed INTEGER, stage TEXT NOT NULL, split TEXT NOT NULL, step INTEGER NOT NULL, tag TEXT NOT NULL,
  stop TEXT NOT NULL, success INTEGER NOT NULL, wrong INTEGER, malformed INTEGER NOT NULL, turns INTEGER NOT NULL,
  score REAL NOT NULL);
CREATE INDEX by_file ON episodes (file);
"""
_COLUMNS = "id, episode, arm, seed, stage, split, step, tag, stop, success, wrong, malformed, turns, score"
_INSERT = (
    "INSERT INTO episodes (file, start, episode, arm, seed, stage, split, step, tag, stop, success, wrong, malformed, "
    "turns, score) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
)
CHOICES = ("arm", "seed", "stage", "split", "step", "tag", "stop")
"""Columns that one filters by value."""
FLAGS = ("success", "wrong", "malformed")
"""Columns that one filters by yes or no."""
ORDERS = {"": "id", "score": "score, id", "-score": "score DESC, id", "turns": "turns, id", "-turns": "turns DESC, id"}
MAX_PAGE = 500


@dataclass(frozen=True)
class Place:
    """Where an episode lies."""

    path: Path
    start: int


class EpisodeIndex:
    """The index of one run. Methods may be called from several threads."""

    def __init__(self, run: Path, *, cache: Path | None = None) -> None:
        """`cache` is the database file; the default is a hidden file in the run directory if that can be written."""
        self.root = run.resolve()
        self._path = cache or _cache_path(self.root)
        self._local = threading.local()
        self._updating = threading.Lock()
        self.progress = (0, 0)  # files done, files to do, in the update under way
        self._prepare()

    def update(self) -> bool:
        """Index files that are new or have changed, forget those that are gone; True if anything changed.

        A second caller while an update is under way returns at once.
        """
        if not self._updating.acquire(blocking=False):
            return False
        try:
            return self._update(open_run(self.root))
        finally:
            self._updating.release()

    def page(self, filters: dict[str, str], *, order: str = "", offset: int = 0, limit: int = 50) -> dict[str, Any]:
        """Episodes that match `filters`, and how many there are.

        `filters` maps CHOICES to a value, FLAGS to "1" or "0", and "q" to a part of the episode's id.
        """
        where, values = _where(filters)
        total = self._db.execute(f"SELECT count(*) FROM episodes {where}", values).fetchone()[0]
        query = f"SELECT {_COLUMNS} FROM episodes {where} ORDER BY {ORDERS.get(order, 'id')} LIMIT ? OFFSET ?"
        rows = self._db.execute(query, (*values, min(max(limit, 1), MAX_PAGE), max(offset, 0)))
        names = [column[0] for column in rows.description]
        return {"total": total, "episodes": [dict(zip(names, row, strict=True)) for row in rows]}

    def newest(self, limit: int) -> list[dict[str, Any]]:
        """The episodes of the latest steps of each stage and split, latest first, at most `limit`."""
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM episodes ORDER BY step DESC, id LIMIT ?", (limit,))
        names = [column[0] for column in rows.description]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def choices(self) -> dict[str, list[Any]]:
        """The values that occur, for every column of CHOICES."""
        return {
            column: [row[0] for row in self._db.execute(f"SELECT DISTINCT {column} FROM episodes ORDER BY {column}")]
            for column in CHOICES
        }

    def place(self, number: int) -> Place | None:
        """Where episode `number` lies; None if there is none."""
        row = self._db.execute(
            "SELECT path, start FROM episodes JOIN files ON files.id = file WHERE episodes.id = ?", (number,)
        ).fetchone()
        return Place(self.root / row[0], row[1]) if row else None

    @property
    def _db(self) -> sqlite3.Connection:
        if not hasattr(self._local, "db"):
            self._local.db = sqlite3.connect(self._path, timeout=30)
            self._local.db.execute("PRAGMA journal_mode=WAL")
            self._local.db.execute("PRAGMA synchronous=OFF")  # a cache: whatever a crash destroys is made again
            self._local.db.execute("PRAGMA cache_size=-16000")
        return self._local.db

    def _prepare(self) -> None:
        try:
            current = self._db.execute("PRAGMA user_version").fetchone()[0] == VERSION
            if current and self._db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok":
                return
        except sqlite3.DatabaseError:  # not a database, or a broken one
            pass
        self._db.close()
        del self._local.db
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._db.executescript(_SCHEMA)
        self._db.execute(f"PRAGMA user_version={VERSION}")

    def _update(self, run: Run) -> bool:
        known = {row[0]: row[1:] for row in self._db.execute("SELECT path, size, changed, id FROM files")}
        work = []
        present = set()
        for stage in run.stages:
            for file in _files(stage):
                name = str(file.path.relative_to(self.root))
                present.add(name)
                status = file.path.stat()
                if known.get(name, ())[:2] != (status.st_size, status.st_mtime_ns):
                    work.append((stage, file.split, file.step, file.path, name, status))
        gone = set(known) - present
        for name in gone:
            self._forget(name)
        for done, (stage, split, step, path, name, status) in enumerate(work):
            self.progress = (done, len(work))
            try:
                with self._db:
                    self._forget(name)
                    row = (name, status.st_size, status.st_mtime_ns)
                    number = self._db.execute("INSERT INTO files (path, size, changed) VALUES (?,?,?)", row).lastrowid
                    self._db.executemany(_INSERT, _rows(path, int(number or 0), stage, split, step))
            except OSError as error:  # the next update tries again
                log.debug("%s is unreadable and left out: %s", path, error)
        self.progress = (len(work), len(work))
        return bool(work or gone)

    def _forget(self, name: str) -> None:
        with self._db:
            self._db.execute("DELETE FROM episodes WHERE file IN (SELECT id FROM files WHERE path = ?)", (name,))
            self._db.execute("DELETE FROM files WHERE path = ?", (name,))


def _files(stage: StageFolder) -> list[TrajectoryFile]:
    try:
        return stage.trajectory_files()
    except OSError as error:
        log.debug("%s is unreadable and left out: %s", stage.path, error)
        return []


def _where(filters: dict[str, str]) -> tuple[str, tuple[Any, ...]]:
    clauses, values = [], []
    for column in CHOICES:
        if filters.get(column):
            clauses.append(f"{column} = ?")
            values.append(filters[column])
    for column in FLAGS:
        if filters.get(column) in ("0", "1"):
            clauses.append(f"{column} = ?")
            values.append(int(filters[column]))
    if filters.get("q"):
        clauses.append("instr(lower(episode), lower(?)) > 0")
        values.append(filters["q"])
    return ("WHERE " + " AND ".join(clauses) if clauses else ""), tuple(values)


def _rows(path: Path, file: int, stage: StageFolder, split: str, step: int) -> Iterator[tuple[Any, ...]]:
    start = 0
    for line, row in _lines(path):
        yield _row(row, file, start, stage, split, step)  # a line of something else, too, so that nobody misses it
        start += len(line)


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    with path.open("rb") as file:
        for line in file:
            yield line, parse_head(line)


def _row(row: dict[str, Any], file: int, start: int, stage: StageFolder, split: str, step: int) -> tuple[Any, ...]:
    turns = row.get("turns") or []
    wrong = any_wrong(row)
    return (
        file,
        start,
        _storable(row.get("episode_id", "unreadable")),
        _storable(stage.arm),
        stage.seed,
        _storable(stage.name),
        _storable(split),
        step,
        _storable(row.get("tag", "")),
        _storable(row.get("stop", "")),
        int(bool(row.get("success"))),
        None if wrong is None else int(wrong),
        int(not all(turn["reply"]["well_formed"] for turn in turns)),
        len(turns),
        sum(turn["reward"] + turn["penalty"] for turn in turns),
    )


def _storable(value: Any) -> str:
    """Text that SQLite can hold and a page can show, at most 300 characters."""
    return printable(str(value)[:300])


def _cache_path(root: Path) -> Path:
    if os.access(root, os.W_OK):
        return root / ".episodes.sqlite"
    return Path(tempfile.mkdtemp(prefix="spa-view-")) / "episodes.sqlite"


def read_episode(place: Place) -> dict[str, Any] | None:
    """The episode's JSON, or None if it is damaged, or if the file has changed since it was indexed."""
    try:
        with place.path.open("rb") as file:
            file.seek(place.start)
            row = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return None
    return row if is_episode(row) else None


def read_scores(place: Place, episode_id: str) -> dict[str, Any]:
    """What the trainer recorded per token of this episode; empty if nothing."""
    path = place.path.parent.parent / "token_scores" / place.path.name
    for _, row in read_lines(path) if path.exists() else ():
        if row.get("episode_id") == episode_id:
            return {key: value for key, value in row.items() if key != "episode_id"}
    return {}

"""An SQLite index of a run's episodes, for filtering and paging up to 100,000 of them.

The trajectory files remain the source of truth. For each episode, the index stores its location in
a file and the columns for filters. It is updated file by file. The index is only a cache, stored
next to the run or in the system's temporary directory.
"""

import json
import logging
import os
import sqlite3
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spa.run.console import printable
from spa.run.files import read_lines
from spa_report.reading import RunFolder, StageFolder, TrajectoryFile, arm_rank, heads, open_run
from spa_report.reading_shape import NUMBER, is_episode, is_tree
from spa_report.replay import any_wrong

log = logging.getLogger("spa.report")

# Increase this number whenever the schema or the content of a column changes. Caches of other
# versions are rebuilt.
VERSION = 6
# With `content=''`, the full-text index stores the positions of words, but no copy of the texts.
# Rows of such an index cannot be deleted, so AUTOINCREMENT keeps ids from being reused.
_SCHEMA = """
CREATE TABLE files (id INTEGER PRIMARY KEY, path TEXT UNIQUE, size INTEGER, changed INTEGER);
CREATE TABLE episodes (
  id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, start INTEGER NOT NULL, episode TEXT NOT NULL,
  arm TEXT NOT NULL, seed INTEGER, stage TEXT NOT NULL, split TEXT NOT NULL, step INTEGER NOT NULL, tag TEXT NOT NULL,
  stop TEXT NOT NULL, success INTEGER NOT NULL, wrong INTEGER, malformed INTEGER NOT NULL, turns INTEGER NOT NULL,
  score REAL NOT NULL, team TEXT NOT NULL, member INTEGER NOT NULL);
CREATE INDEX by_file ON episodes (file, team);
CREATE VIRTUAL TABLE words USING fts5(text, content='');
"""
_COLUMNS = "id, episode, arm, seed, stage, split, step, tag, stop, success, wrong, malformed, turns, score, member"
_INSERT = "INSERT INTO episodes VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
CHOICES = ("arm", "seed", "stage", "split", "step", "tag", "stop")
"""Columns that are filtered by value."""
FLAGS = ("success", "wrong", "malformed")
"""Boolean columns, which are filtered by "1" or "0"."""
# SQL has no parameters for columns. The order in a request is only a key of this table, so it never
# becomes part of a query.
ORDERS = {
    "": "id",
    "score": "score, id",
    "-score": "score DESC, id",
    "turns": "turns, id",
    "-turns": "turns DESC, id",
}
MAX_PAGE = 500


@dataclass(frozen=True)
class Place:
    """Location of an episode: a file, and the byte offset of its line."""

    path: Path
    start: int


class EpisodeIndex:
    """The index of one run. Methods may be called from several threads."""

    def __init__(self, run: Path, *, cache: Path | None = None) -> None:
        """Open or create the index of `run` in the database file `cache`. By default, this is a
        hidden file in the run directory, or a temporary file if that directory is not writable."""
        self.root = run.resolve()
        self._path = cache or _cache_path(self.root)
        self._updating = threading.Lock()
        self.progress = (0, 0)  # (indexed files, all files) of the running update
        self._prepare()

    def update(self) -> bool:
        """Index new and changed files, and remove missing ones. Return whether anything changed.

        Returns False at once if another update is in progress.
        """
        if not self._updating.acquire(blocking=False):
            return False
        try:
            if _inode(self._path) != self._inode:  # the file was removed
                self._prepare()
            return self._update(open_run(self.root))
        finally:
            self._updating.release()

    def page(
        self, filters: dict[str, str], *, order: str = "", offset: int = 0, limit: int = 50
    ) -> dict[str, Any]:
        """Return one page of the episodes that match `filters`, and the number of all that match.

        `filters` maps a column of CHOICES to a value, a column of FLAGS to "1" or "0", and "q" to a
        search text. The search text matches a part of an episode's id. It also matches consecutive
        words of a state, response or error, the last of which may be incomplete. `order` is a key
        of ORDERS.
        """
        where, values = _where_clause(filters)
        total = self._db.execute(f"SELECT count(*) FROM episodes {where}", values).fetchone()[0]
        # Ties are broken by id, so that pages neither repeat nor skip an episode.
        query = f"SELECT {_COLUMNS} FROM episodes {where} ORDER BY {ORDERS.get(order, 'id')} LIMIT ? OFFSET ?"
        records = self._rows(query, (*values, min(max(limit, 1), MAX_PAGE), max(offset, 0)))
        return {"total": total, "episodes": records}

    def spread(self, limit: int) -> list[dict[str, Any]]:
        """At most `limit` episodes, taken round-robin from all kinds (method, seed, stage, split
        and outcome). Within a kind, later steps come first."""
        kind = (
            "PARTITION BY arm, seed, stage, split, success, wrong, malformed ORDER BY step DESC, id"
        )
        # row_number() counts within each kind. Sorting by it puts the first episode of every kind
        # before the second of any kind.
        order = f"SELECT id FROM episodes ORDER BY row_number() OVER ({kind}), id LIMIT ?"
        return self._rows(
            f"SELECT {_COLUMNS} FROM episodes WHERE id IN ({order}) ORDER BY id", (limit,)
        )

    def group(self, number: int) -> list[dict[str, Any]]:
        """The group of episode `number`: all episodes, including this one, that were sampled
        together on the same puzzle."""
        # `team` combines tag and group. A group never spans several files.
        same = "(file, team) = (SELECT file, team FROM episodes WHERE id = ?)"
        return self._rows(
            f"SELECT {_COLUMNS} FROM episodes WHERE {same} ORDER BY member, id", (number,)
        )

    def last_validation(self) -> dict[str, str]:
        """Filters that select the last validation of the main method. Empty if the run has no
        validation."""
        where = "WHERE split = 'val' AND stage IN ('ppo', 'eval') GROUP BY arm, stage"
        steps = self._db.execute(f"SELECT arm, stage, max(step) FROM episodes {where}").fetchall()
        if not steps:
            return {}
        arm, stage, step = min(steps, key=lambda row: arm_rank(row[0]))
        return {"arm": arm, "stage": stage, "split": "val", "step": str(step)}

    def choices(self) -> dict[str, list[Any]]:
        """Map each column of CHOICES to its distinct values, sorted."""
        return {
            column: [
                row[0]
                for row in self._db.execute(
                    f"SELECT DISTINCT {column} FROM episodes ORDER BY {column}"
                )
            ]
            for column in CHOICES
        }

    def place(self, number: int) -> Place | None:
        """The location of episode `number`, or None if the index has no such episode."""
        row = self._db.execute(
            "SELECT path, start FROM episodes JOIN files ON files.id = file WHERE episodes.id = ?",
            (number,),
        ).fetchone()
        return Place(self.root / row[0], row[1]) if row else None

    def _rows(self, query: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        rows = self._db.execute(query, values)
        return [
            dict(zip([column[0] for column in rows.description], row, strict=True)) for row in rows
        ]

    @property
    def _db(self) -> sqlite3.Connection:
        # Each thread has its own connection. WAL lets requests read while the update writes.
        local = self._local  # `_prepare` may replace it
        if not hasattr(local, "db"):
            local.db = sqlite3.connect(self._path, timeout=30)
            local.db.execute("PRAGMA journal_mode=WAL")
            # The index can be rebuilt after a crash, so writes need not be synced to disk.
            local.db.execute("PRAGMA synchronous=OFF")
            local.db.execute("PRAGMA cache_size=-16000")
        return local.db

    def _prepare(self) -> None:
        self._local = threading.local()  # connections to a removed file are not used again
        self._make()
        self._inode = _inode(self._path)

    def _make(self) -> None:
        try:
            current = self._db.execute("PRAGMA user_version").fetchone()[0] == VERSION
            if current and self._db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok":
                return
        except sqlite3.DatabaseError:  # not a database, or a broken one
            pass
        self._db.close()
        del self._local.db
        # `-wal` contains pages of the old database, which SQLite could replay into the new one. So
        # this file is removed, too.
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self._db.executescript(_SCHEMA)
        self._db.execute(f"PRAGMA user_version={VERSION}")

    def _update(self, run: RunFolder) -> bool:
        known = {
            row[0]: row[1:] for row in self._db.execute("SELECT path, size, changed, id FROM files")
        }
        present = {
            str(file.path.relative_to(self.root)): (stage, file, file.path.stat())
            for stage in run.stages
            for file in _files(stage)
        }
        work = [
            (name, *stamp)
            for name, stamp in present.items()
            # Files are compared by size and modification time. Their content is not hashed.
            if known.get(name, ())[:2] != (stamp[2].st_size, stamp[2].st_mtime_ns)
        ]
        # First index the files whose episodes the page shows first.
        work.sort(
            key=lambda item: (
                item[2].split != "val",
                item[1].name not in ("ppo", "eval"),
                arm_rank(item[1].arm),
                -item[2].step,
            )
        )
        gone = known.keys() - present
        for name in gone:
            self._forget(name)
        for done, (name, stage, file, status) in enumerate(work):
            self.progress = (done, len(work))
            try:
                # One transaction adds the whole file, so a crash leaves no file partly indexed.
                with self._db:
                    self._forget(name)
                    row = (name, status.st_size, status.st_mtime_ns)
                    number = self._db.execute(
                        "INSERT INTO files (path, size, changed) VALUES (?,?,?)", row
                    ).lastrowid
                    # Never reuse ids. The words of a removed episode remain in the full-text index
                    # and must not find a new episode.
                    last = self._db.execute(
                        "SELECT max(seq) FROM sqlite_sequence WHERE name = 'episodes'"
                    ).fetchone()
                    where = (int(number or 0), stage, file.split, file.step)
                    texts = []
                    rows = []
                    for place, (start, head) in enumerate(heads(file.path), (last[0] or 0) + 1):
                        rows.append((place, *_row(head, start, *where)))
                        texts.append((place, _text(head)))
                    self._db.executemany(_INSERT, rows)
                    self._db.executemany("INSERT INTO words (rowid, text) VALUES (?,?)", texts)
            except OSError as error:  # The next update tries again.
                log.debug("%s is unreadable and skipped: %s", file.path, error)
        self.progress = (len(work), len(work))
        return bool(work or gone)

    def _forget(self, name: str) -> None:
        with self._db:
            self._db.execute(
                "DELETE FROM episodes WHERE file IN (SELECT id FROM files WHERE path = ?)", (name,)
            )
            self._db.execute("DELETE FROM files WHERE path = ?", (name,))


def _inode(path: Path) -> int | None:
    return path.stat().st_ino if path.exists() else None


def _files(stage: StageFolder) -> list[TrajectoryFile]:
    try:
        return stage.trajectory_files()
    except OSError as error:
        log.debug("%s is unreadable and skipped: %s", stage.path, error)
        return []


def _where_clause(filters: dict[str, str]) -> tuple[str, tuple[Any, ...]]:
    # The page sends every field of its form, and an empty value means no filter.
    equal: dict[str, Any] = {column: filters[column] for column in CHOICES if filters.get(column)}
    equal |= {name: int(filters[name]) for name in FLAGS if filters.get(name) in ("0", "1")}
    clauses = [f"{column} = ?" for column in equal]
    values = [*equal.values()]
    if filters.get("q"):
        matching = "SELECT rowid FROM words WHERE words MATCH ?"
        clauses.append(f"(instr(lower(episode), lower(?)) > 0 OR id IN ({matching}))")
        # A quoted phrase with `*` matches its words in this order, the last one as a prefix. FTS5
        # has its own query language, so quotes are doubled and NUL is removed.
        values += [filters["q"], '"' + filters["q"].replace('"', '""').replace("\0", "") + '"*']
    return ("WHERE " + " AND ".join(clauses) if clauses else ""), tuple(values)


def _text(row: dict[str, Any]) -> str:
    """The searchable text of an episode: its states, responses and error."""
    parts = [
        text
        for turn in row.get("turns") or ()
        for text in (turn["state"], turn.get("response_text"))
    ]
    # Each next state is the following turn's state, so add only the last one.
    last = [turn["next_state"] for turn in (row.get("turns") or ())[-1:]]
    return printable(
        "\n".join(part for part in (*parts, *last, row.get("error")) if isinstance(part, str))
    )


def _row(
    row: dict[str, Any], start: int, file: int, stage: StageFolder, split: str, step: int
) -> tuple[Any, ...]:
    """The column values of an episode. A damaged line gets defaults, so that it is still listed."""
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
        int(not all(turn["response"]["well_formed"] for turn in turns)),
        len(turns),
        sum(turn["reward"] + turn["penalty"] for turn in turns),
        f"{_storable(row.get('tag', ''))} {row.get('group')}",
        row["member"] if isinstance(row.get("member"), int) else 0,
    )


def _storable(value: Any) -> str:
    """Convert a value to printable text of at most 300 characters."""
    return printable(str(value)[:300])


def _cache_path(root: Path) -> Path:
    if os.access(root, os.W_OK):
        return root / ".episodes.sqlite"
    return Path(tempfile.mkdtemp(prefix="spa-view-")) / "episodes.sqlite"


def read_episode(place: Place) -> dict[str, Any] | None:
    """The JSON of an episode, or None if it is damaged or its file has changed since it was
    indexed."""
    try:
        with place.path.open("rb") as file:
            # The line may have moved since it was indexed. Text that starts in the middle of a line
            # fails in `json.loads` or in `is_episode`.
            file.seek(place.start)
            row = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return None
    return row if is_episode(row) else None


def read_scores(place: Place, episodes: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Map episode ids to the values per token that the trainer recorded, such as advantages.
    Episodes without recorded values are omitted."""
    path = place.path.parent.parent / "token_scores" / place.path.name
    rows = (row for _, row in read_lines(path)) if path.exists() else ()
    return {str(row.pop("episode_id")): row for row in rows if row.get("episode_id") in episodes}


def mean_advantage(scores: Mapping[str, Any]) -> float | None:
    """Mean of an episode's nonzero token advantages. 0 if all are 0, None if no advantages are
    recorded."""
    values = scores.get("advantages")
    # Prompt and environment tokens have advantage 0, so zeros are omitted.
    known = (
        [value for value in values if NUMBER(value) and value] if isinstance(values, list) else []
    )
    return round(sum(known) / len(known), 4) if known else 0.0 if values else None


def read_imagined(place: Place, episode: str) -> dict[int, list[dict[str, Any]]]:
    """Map each turn to the nodes of the planner's search tree in that turn.

    A node has its actions, predicted state, value and depth, whether the prediction is correct, and
    whether it was chosen. Its `root` is the index of the first response on its path.
    """
    path = place.path.parent.parent / "imagined" / place.path.name.rpartition("-")[2]
    rows = (
        [row for _, row in read_lines(path) if row.get("episode_id") == episode]
        if path.exists()
        else []
    )
    return {
        row["turn"]: [_node(row, index) for index in range(len(row["imagined"]))]
        for row in rows
        if is_tree(row)
    }


def _node(row: dict[str, Any], index: int) -> dict[str, Any]:
    node = row["imagined"][index]
    return {
        "actions": printable(", ".join(node["actions"])[:200]),
        "state": printable((node["state"] or "")[:2000]),
        # Older records use the key `worth`.
        "value": node.get("value", node.get("worth")),
        "right": node["right"],
        "root": node["root"],
        "depth": node["depth"],
        "chosen": index == row["chosen"],
    }

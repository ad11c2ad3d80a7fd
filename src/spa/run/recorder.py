"""The record of a stage, which training writes and the viewer and reports read.

A stage directory contains `config.yaml`, `metrics.jsonl` (deterministic: no times),
`timings.jsonl`, `trajectories/`, `token_scores/` (advantages, returns and values per token) and
`log.txt`.
"""

import logging
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

from spa.errors import TrainingError
from spa.run.console import FILE_ONLY, ensure_logging
from spa.run.files import (
    METRICS,
    archive_files,
    dump_line,
    flush_directory,
    read_lines,
    save_config,
    scalar,
    write_atomic,
)
from spa.run.watchdog import Watchdog

if TYPE_CHECKING:  # spa.types imports torch, which a viewer does not need
    from spa.types import Episode, Metrics

TIMING_PREFIXES = ("timing_s/", "perf/")
"""Prefixes of nondeterministic metrics, which go to `timings.jsonl` instead of `metrics.jsonl`."""

_RECORDS = (METRICS, "timings.jsonl")
_EPISODES = ("trajectories", "token_scores")
_TRACKED = "tensorboard"
"""Folder of the only tracker that writes into the stage's folder. A run from scratch archives it,
because the tracker would otherwise join the curves of both runs."""
_LOGGER = logging.getLogger("spa.run")


class Sink(Protocol):
    """A destination that receives metrics in addition to the files: the console or a tracker (see
    `spa.run.trackers`)."""

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Log the metrics of one step; non-finite values are None or text."""
        ...

    def episodes(self, step: int, split: str, episodes: "Sequence[Episode]") -> None:
        """Log a few sample episodes of one step."""
        ...

    def close(self) -> None:
        """Close the destination."""
        ...


OpenTrackers = Callable[..., Sink]
"""Function that opens the trackers of a stage. It is called with the keyword arguments directory,
stage, config, total_steps and start_step."""


class Recorder:
    """Context manager that writes the record of one stage and passes it to the trackers.

    With `resume_step=k`, lines and episodes of steps after k are removed, and the record continues
    at step k + 1. A resumed run thus ends with the same files as an uninterrupted one, byte for
    byte. With `resume_step=None`, an older record in the directory is moved to `previous/<n>/`. If
    there is no progress for `stall_timeout_s` seconds, the process reports where it hangs and exits
    (see `spa.run.watchdog`). With `enabled=False` (ranks other than 0) nothing is written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        stage: str,
        config: Any = None,
        trackers: OpenTrackers | None = None,
        total_steps: int | None = None,
        enabled: bool = True,
        resume_step: int | None = None,
        stall_timeout_s: float | None = None,
    ) -> None:
        """Open the record. `trackers` opens the trackers once the folder is ready; None writes only
        the files."""
        self.directory = Path(directory)
        self.stage = stage
        self.enabled = enabled
        self._total_steps = total_steps
        self._seconds: dict[str, float] = defaultdict(float)
        self._last_log = time.monotonic()
        self._written: set[Path] = set()
        if not enabled:
            return
        ensure_logging()
        with _disk_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            if resume_step is None:
                _move_aside(self.directory)
            else:
                _truncate(self.directory, resume_step)
            if config is not None:
                save_config(config, self.directory / "config.yaml")
            self._watchdog = Watchdog(self.directory / "log.txt", stall_timeout_s, name=stage)
        self._sink = (
            None
            if trackers is None
            else trackers(
                directory=self.directory,
                stage=stage,
                config=config,
                total_steps=total_steps,
                start_step=resume_step or 0,
            )
        )

    def log(self, step: int, metrics: "Metrics", *, tokens: int | None = None) -> None:
        """Append the metrics of a step to `metrics.jsonl` and its timings to `timings.jsonl`, and
        pass both to the trackers.

        Metrics that begin with `timing_s/` or `perf/` are timings. NaN is written as null, and
        infinities as the strings "Infinity" and "-Infinity". If `tokens`, the number of tokens that
        the step processed, is given and not 0, the timings include `perf/throughput`: tokens per
        second since the last call.
        """
        if not self.enabled:
            return
        now = time.monotonic()
        if tokens and now > self._last_log:
            metrics = {**metrics, "perf/throughput": tokens / (now - self._last_log)}
        elapsed = now - self._last_log
        self._last_log = now
        values = {key: scalar(value) for key, value in metrics.items()}
        timings = {key: value for key, value in values.items() if key.startswith(TIMING_PREFIXES)}
        lasting = {key: value for key, value in values.items() if key not in timings}
        timings = {f"timing_s/{key}": seconds for key, seconds in self._seconds.items()} | timings
        timings |= resources()
        self._seconds.clear()
        if lasting:
            self._append(METRICS, step, lasting)
        # `elapsed` comes from a monotonic clock, because the wall clock may be adjusted during the
        # run.
        clock = {"elapsed_s": round(elapsed, 3), "unix_time": round(time.time(), 3)}
        if self._total_steps is not None:
            clock["total_steps"] = self._total_steps
        self._append("timings.jsonl", step, {**timings, **clock})
        self._watchdog.beat(f"work after step {step}", step=True)
        if self._sink is not None:
            self._sink.log(step, {**lasting, **timings})

    @contextmanager
    def timer(self, name: str) -> Iterator[None]:
        """Add the seconds of the `with` block to `timing_s/<name>`, written by the next `log`."""
        start = time.perf_counter()
        if self.enabled:
            self._watchdog.beat(name)
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self._seconds[name] += seconds
            _LOGGER.debug("%s: %s took %.2f s", self.stage, name, seconds)

    def trajectories(self, step: int, split: str, episodes: Sequence["Episode"]) -> None:
        """Write `trajectories/<split>-<step>.jsonl`, one `Episode.to_json()` per line; a second
        call appends."""
        if not self.enabled:
            return
        self._write_rows("trajectories", step, split, (episode.to_json() for episode in episodes))
        if self._sink is not None:
            self._sink.episodes(step, split, episodes)

    def token_scores(
        self, step: int, split: str, scores: Mapping[str, Mapping[str, Sequence[float]]]
    ) -> None:
        """Write values that the trainer computed per token, which the viewer shows for each token.

        `scores` maps an episode id to lists by name, such as "advantages", "values" or "returns".
        Each list has one number per token of the episode, [T].
        """
        if not self.enabled:
            return
        rows = (
            {"episode_id": key, **{name: list(row) for name, row in value.items()}}
            for key, value in scores.items()
        )
        self._write_rows("token_scores", step, split, rows)

    def message(self, text: str) -> None:
        """Write a line to the stage's `log.txt`."""
        if self.enabled:
            _LOGGER.info("%s", text, extra=FILE_ONLY)

    def close(self) -> None:
        """Close the trackers and the progress bar. Calling it again does nothing."""
        if not self.enabled:
            return
        self.enabled = False
        self._watchdog.close()
        if self._sink is not None:
            self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _append(self, name: str, step: int, values: dict[str, Any]) -> None:
        with (
            _disk_errors(self.directory / name),
            (self.directory / name).open("a", encoding="utf-8") as file,
        ):
            # Keys are sorted, so that the file does not depend on the order in which metrics are
            # computed.
            file.write(dump_line({"step": int(step), **dict(sorted(values.items()))}))
            _sync(file)
            # For a new file, the folder's entry must be flushed, too.
            if self.directory / name not in self._written:
                flush_directory(self.directory)
                self._written.add(self.directory / name)

    def _write_rows(
        self, folder: str, step: int, split: str, rows: Iterator[dict[str, Any]]
    ) -> None:
        path = self.directory / folder / f"{split}-{step:06d}.jsonl"
        with _disk_errors(path):
            path.parent.mkdir(exist_ok=True)
            # The first write replaces a file that an interrupted process left. Later writes append.
            if path in self._written:
                with path.open("a", encoding="utf-8") as file:
                    file.writelines(dump_line(row) for row in rows)
                    _sync(file)
            else:
                write_atomic(path, (dump_line(row) for row in rows))
                self._written.add(path)


def resources() -> dict[str, float]:
    """Return the peak memory of this process in GB, and the load of the machine: the number of
    running or waiting processes, averaged over a minute."""
    # Linux counts ru_maxrss in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"perf/memory_gb": round(peak / 1e9, 3), "perf/load": round(os.getloadavg()[0], 2)}


def _sync(file: IO[str]) -> None:
    """Flush a file to disk, so that no checkpoint is on disk without the records of its steps."""
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise TrainingError(
            f"cannot write {path}: {reason}. Free disk space or fix the permissions, then run the same "
            "command again to resume from the last complete checkpoint."
        ) from error


def _move_aside(directory: Path) -> None:
    """Move an older record in the directory to `previous/<n>/`; nothing is deleted."""
    old = [
        directory / name
        for name in (*_RECORDS, *_EPISODES, _TRACKED)
        if (directory / name).exists()
    ]
    if old:
        archive_files(directory, old)


def _truncate(directory: Path, last_step: int) -> None:
    """Remove lines and episode files of steps after `last_step`, and an incomplete last line."""
    for name in _RECORDS:
        path = directory / name
        if path.exists():
            write_atomic(
                path, (line for line, row in read_lines(path) if row.get("step", -1) <= last_step)
            )
    for folder in _EPISODES:
        for path in (directory / folder).glob("*.jsonl"):
            # `train-000012.jsonl` -> 12
            step = path.stem.rpartition("-")[2]
            if step.isdecimal() and int(step) > last_step:
                path.unlink()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a `metrics.jsonl` or `timings.jsonl`; empty if the file is missing."""
    return [row for _, row in read_lines(path)] if path.exists() else []

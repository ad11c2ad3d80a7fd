"""The record of a stage: what training writes and everything that looks at a run reads.

A stage directory holds `config.yaml`, `metrics.jsonl` (deterministic: no times), `timings.jsonl`,
`trajectories/`, `token_scores/` (what the trainer thought of single tokens) and `log.txt`.
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
"""Keys that differ from run to run: they go to `timings.jsonl`, whichever way they were logged."""

_RECORDS = (METRICS, "timings.jsonl")
_EPISODES = ("trajectories", "token_scores")
_TRACKED = "tensorboard"
"""The one tracker that writes into the record. Without steps to resume from, its curves would
begin a second time."""
_LOGGER = logging.getLogger("spa.run")


class Sink(Protocol):
    """A place that metrics are sent to besides the files, see `spa.run.trackers`."""

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Metrics of one step; values may be None or text where they were not finite."""
        ...

    def episodes(self, step: int, split: str, episodes: "Sequence[Episode]") -> None:
        """A few sample episodes of one step."""
        ...

    def close(self) -> None:
        """Finish."""
        ...


OpenTrackers = Callable[..., Sink]
"""(directory, stage, config, total_steps, start_step), by name -> the trackers of a stage."""


class Recorder:
    """Writes the record of one stage and tells the trackers. Also a context manager.

    With `resume_step` = k the record continues after step k: lines and episodes of later steps are
    dropped, so that an interrupted run ends with the files of an undisturbed one, byte for byte.
    Without it, an older record in the same directory is moved to `previous/<n>/`. Without progress
    (a timer that begins, a line that is written) for `stall_timeout_s` the process ends, saying
    where it hung. With `enabled` = False (ranks other than 0) every method does nothing.
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
        """`trackers`: opened when the folder is ready; None for the files alone."""
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
        """Append one line to `metrics.jsonl` and the seconds since the last call to
        `timings.jsonl`; tell the trackers.

        NaN is written as null and infinities as the strings "Infinity" and "-Infinity". Keys that
        begin with `timing_s/` or `perf/` go to `timings.jsonl`. With `tokens`, how many tokens the
        step dealt with, their number per second since the last call is `perf/throughput`; without
        any, such as in random play, there is no such metric.
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
        # `elapsed` is from a monotonic clock; the wall clock may be changed during the run.
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
        """Write what the trainer computed per token, for the viewer's hover text.

        `scores` maps an episode id to token-aligned lists [T] by name, for example "advantages",
        "values", "returns".
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
            # Sorted: the bytes must not depend on the order in which metrics were computed.
            file.write(dump_line({"step": int(step), **dict(sorted(values.items()))}))
            _sync(file)
            # The name of a new file must reach the disk, too. Later lines need only the file
            # flushed.
            if self.directory / name not in self._written:
                flush_directory(self.directory)
                self._written.add(self.directory / name)

    def _write_rows(
        self, folder: str, step: int, split: str, rows: Iterator[dict[str, Any]]
    ) -> None:
        path = self.directory / folder / f"{split}-{step:06d}.jsonl"
        with _disk_errors(path):
            path.parent.mkdir(exist_ok=True)
            # The first write of this start replaces what an interrupted start left. Later writes
            # append.
            if path in self._written:
                with path.open("a", encoding="utf-8") as file:
                    file.writelines(dump_line(row) for row in rows)
                    _sync(file)
            else:
                write_atomic(path, (dump_line(row) for row in rows))
                self._written.add(path)


def resources() -> dict[str, float]:
    """The largest memory of this process so far in GB, and the load of the machine: processes that
    run or wait, averaged over a minute."""
    # Linux counts ru_maxrss in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"perf/memory_gb": round(peak / 1e9, 3), "perf/load": round(os.getloadavg()[0], 2)}


def _sync(file: IO[str]) -> None:
    """On the disk before anything counts on it: a checkpoint that outlived the lines before it
    would lose them."""
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
    """Keep an older record of the same directory in `previous/<n>/`; nothing is deleted."""
    old = [
        directory / name
        for name in (*_RECORDS, *_EPISODES, _TRACKED)
        if (directory / name).exists()
    ]
    if old:
        archive_files(directory, old)


def _truncate(directory: Path, last_step: int) -> None:
    """Drop everything that was recorded after `last_step`, and a line that was cut off by a kill."""
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
    """The complete lines of a `metrics.jsonl` or `timings.jsonl`; an empty list if there is none."""
    return [row for _, row in read_lines(path)] if path.exists() else []

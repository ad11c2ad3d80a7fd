"""The progress of a stage, read from the files that it writes while running."""

import json
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from spa.run.estimate import Work
from spa.run.files import METRICS, complete_lines
from spa.run.trackers import headline

TIMINGS = "timings.jsonl"
_WINDOW = 20
"""Number of recent steps from which the remaining time is estimated."""
LABELS = ("success", "prediction", "copy baseline")
"""The metrics to show, by their labels on the progress line (`spa.run.trackers.SHOWN`)."""


class StageProgress:
    """Progress of a stage as recorded in its files. `read` adds the lines that were written since
    the last call."""

    def __init__(self, folder: Path) -> None:
        self.step = 0
        self.total: int | None = None
        self.seconds = 0.0
        self.latest: float | None = None  # Unix time at the end of the last step
        self.values: dict[str, tuple[str, int]] = {}  # label -> (formatted value, step)
        self._folder = folder
        self._sizes = {METRICS: 0, TIMINGS: 0}
        self._recent: deque[float] = deque(maxlen=_WINDOW)

    @property
    def steps(self) -> str:
        """The progress as text: `12/48`, or `12` if the total is unknown."""
        return f"{self.step}/{self.total}" if self.total else f"{self.step}"

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the stage ends, estimated from the duration of its last steps; None if
        unknown."""
        if self.total is None or not self._recent:
            return None
        return max(self.total - self.step, 0) * self.step_seconds

    @property
    def step_seconds(self) -> float:
        """Mean duration of the last steps in seconds; 0 if unknown."""
        return sum(self._recent) / len(self._recent) if self._recent else 0.0

    def seconds_left_at(self, now: float) -> float | None:
        """Seconds until a running stage ends, at the wall-clock time `now`. The time already spent
        on the current step is subtracted."""
        left = self.seconds_left
        if not left or self.latest is None:
            return left
        return left - min(max(now - self.latest, 0.0), self.step_seconds)

    def work(
        self, name: str, expected: float | None, *, finished: bool, now: float | None = None
    ) -> Work:
        """Return the stage's entry in the time estimate. `now` is the current wall-clock time if
        the stage is running."""
        left = self.seconds_left if now is None else self.seconds_left_at(now)
        return Work(
            name=name, expected=expected, spent=self.seconds, left=0.0 if finished else left
        )

    def read(self) -> Self:
        """Read the lines that were added since the last call. A file that became shorter was
        replaced, so it is read from its start."""
        for row in self._new_rows(METRICS):
            shown = headline(row)
            self.values |= {
                label: (shown[label], row["step"]) for label in LABELS if label in shown
            }
        for row in self._new_rows(TIMINGS):
            # `timings.jsonl` has a line for every step; `metrics.jsonl` skips steps without
            # metrics.
            self.step = row["step"]
            self.total = row.get("total_steps", self.total)
            elapsed = row.get("elapsed_s", 0.0)
            self.seconds += elapsed
            self.latest = row.get("unix_time", self.latest)
            self._recent.append(elapsed)
        return self

    def _new_rows(self, name: str) -> Iterator[dict[str, Any]]:
        path = self._folder / name
        size = path.stat().st_size if path.is_file() else 0
        # A resumed stage has rewritten its files, so counting starts again.
        if size < self._sizes[name]:
            self._sizes[name] = 0
            if name == TIMINGS:
                self.seconds = 0.0
                self._recent.clear()
        if size == self._sizes[name]:
            return
        text = complete_lines(path, self._sizes[name])
        # `text` ends with the last complete line; the rest is read next time.
        self._sizes[name] += len(text)
        for line in text.splitlines():
            with suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    yield row

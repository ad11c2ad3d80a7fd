"""Show the progress of several training runs at once: as a live table on a terminal, otherwise as
lines.

The values come from the files that each stage writes, so the workers need no connection to this
process.
"""

import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from spa.run.console import get_console, is_quiet, printable
from spa.run.estimate import time_left
from spa.run.files import complete_lines
from spa.run.live import LABELS, StageProgress
from spa.run.progress import clock
from spa.tables import Table

SECONDS_BETWEEN_LOOKS = 1.0
_LINE_SECONDS = (30.0, 300.0)
"""Minimum and maximum number of seconds between two lines about a method."""
_BAR_WIDTH = 8


@dataclass(frozen=True, slots=True)
class StageView:
    """A stage of a method, for display."""

    method: str
    name: str  # the name to show
    folder: Path  # contains the stage's records
    expected: float | None = None  # estimated duration in seconds; None if unknown


class GridProgress:
    """Context manager that shows the progress of every method, or nothing in quiet mode.

    `workers` is the number of stages that run at a time. On a terminal, `worker_errors` is a file
    for the workers' messages. They are printed above the table, which they would otherwise break.
    """

    def __init__(self, stages: Sequence[StageView], *, workers: int = 1) -> None:
        self._workers = workers
        self._methods: dict[str, list[StageView]] = {}
        for stage in stages:
            self._methods.setdefault(stage.method, []).append(stage)
        self.worker_errors: Path | None = None
        self._relayed = 0
        self._live: Live | None = None
        self._started = time.monotonic()
        self._last_line = dict.fromkeys(self._methods, self._started)
        self._printed: dict[Path, int] = {}
        self._known = {stage.folder: StageProgress(stage.folder) for stage in stages}
        self._unfinished = set[Path]()
        # folder of a running stage -> time at which it was first seen
        self._begun = dict[Path, float]()

    def __enter__(self) -> Self:
        console = get_console()
        if console.is_terminal and not is_quiet():
            self._folder = tempfile.TemporaryDirectory(prefix="spa-")
            self.worker_errors = Path(self._folder.name) / "stderr"
            self.worker_errors.touch()
            # The table is redrawn only by `update`, not by a timer. It disappears at the end, and
            # the command prints its results instead.
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Remove the table, and print the last messages of the workers."""
        self.close()
        if self.worker_errors is not None:
            self._relay(get_console())
            self._folder.cleanup()

    def close(self) -> None:
        """Remove the table. Calling it again does nothing."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(
        self,
        *,
        running: Collection[Path],
        unfinished: Collection[Path],
        failed: Collection[Path] = (),
    ) -> None:
        """Show the progress of the methods. Each argument has the resolved folders of the stages in
        that state."""
        if is_quiet():
            return
        for folder in running:
            self._begun.setdefault(folder, time.monotonic())
        if self._live is not None:
            self._relay(self._live.console)
            table = self._table(running, unfinished, failed).terminal()
            table.caption = Text(printable(self._remaining(running, unfinished, failed)))
            self._live.update(table, refresh=True)
        else:
            self._lines(running, unfinished, failed)
        self._unfinished = set(unfinished)

    def _current(self, method: str, unfinished: Collection[Path]) -> StageView | None:
        """Return the first unfinished stage of a method, or None if all are finished."""
        stages = self._methods[method]
        return next((stage for stage in stages if stage.folder.resolve() in unfinished), None)

    def _table(
        self,
        running: Collection[Path],
        unfinished: Collection[Path],
        failed: Collection[Path],
    ) -> Table:
        rows = []
        for method, stages in self._methods.items():
            stage = self._current(method, unfinished)
            shown = stage or stages[-1]
            known = self._known[shown.folder].read()
            state = "finished"
            if stage is not None:
                folder = stage.folder.resolve()
                state = "failed" if folder in failed else "" if folder in running else "waiting"
            share = 1.0 if stage is None else min(known.step / (known.total or 1), 1.0)
            done = round(_BAR_WIDTH * share)
            bar = "━" * done + "─" * (_BAR_WIDTH - done)
            values = [known.values.get(label, ("", 0))[0] for label in LABELS]
            rows.append((method, shown.name, bar, known.steps, *values, state or self._time(shown)))
        columns = ("method", "stage", "", "step", *LABELS, "time left")
        return Table(columns, rows, right=range(3, 8))

    def _time(self, stage: StageView) -> str:
        """Return the remaining time of a running stage, or the elapsed time if the remaining time
        is not known yet."""
        left = self._known[stage.folder].seconds_left_at(time.time())
        if left is not None:
            return clock(left)
        return f"{clock(time.monotonic() - self._begun[stage.folder.resolve()])} so far"

    def _remaining(
        self,
        running: Collection[Path],
        unfinished: Collection[Path],
        failed: Collection[Path],
    ) -> str:
        """Describe the remaining time of all work, and the next stage of each method."""
        now = time.time()
        works = []
        coming = []
        for method, stages in self._methods.items():
            own = []
            for stage in stages:
                folder = stage.folder.resolve()
                known = self._known[stage.folder].read()
                finished = folder not in unfinished or folder in failed
                at = now if folder in running else None
                own.append(known.work(stage.name, stage.expected, finished=finished, now=at))
            works.append(own)
            waiting = [
                stage
                for stage in stages
                if stage.folder.resolve() in {*unfinished} - {*running} - {*failed}
            ]
            coming += [f"{method} {stage.name}" for stage in waiting[:1]]
        left = time_left(works, workers=self._workers)
        parts = [] if left is None else [f"{left} left in all"]
        return "; ".join([*parts, *([f"next: {', '.join(coming)}"] if coming else [])])

    def _lines(
        self, running: Collection[Path], unfinished: Collection[Path], failed: Collection[Path]
    ) -> None:
        now = time.monotonic()
        # A run of ten minutes prints about ten lines per method; a run of a day prints a few
        # hundred.
        shortest, longest = _LINE_SECONDS
        pause = min(max(shortest, (now - self._started) / 4), longest)
        shown = set[Path]()  # stages already printed, because methods may share a stage
        for method, stages in self._methods.items():
            for stage in stages:
                folder = stage.folder.resolve()
                # Print one line for a stage that has finished since the last update, even if
                # several methods share it.
                if folder in self._unfinished and folder not in {*unfinished, *shown}:
                    shown.add(folder)
                    known = self._known[stage.folder].read()
                    self._line(stage, known, f"finished in {clock(known.seconds)}")
            stage = self._current(method, unfinished)
            if stage is None or stage.folder.resolve() not in set(running) - shown:
                continue
            shown.add(stage.folder.resolve())
            if now - self._last_line[method] >= pause:
                known = self._known[stage.folder].read()
                outlook = self._remaining(running, unfinished, failed)
                ending = self._time(stage)
                if known.seconds_left is not None:
                    ending += " left"
                self._line(stage, known, f"{ending} ({outlook})" if outlook else ending)

    def _line(self, stage: StageView, known: StageProgress, ending: str) -> None:
        """Print a line with the values that are new since the previous line of this stage."""
        self._last_line[stage.method] = time.monotonic()
        since = self._printed.get(stage.folder, -1)
        self._printed[stage.folder] = known.step
        new = [f"{label} {value}" for label, (value, step) in known.values.items() if step > since]
        # For example "SFT 1 step 11": the word `step` separates the number of the round from that
        # of the step.
        steps = f" {known.steps if known.total else f'step {known.step}'}" if known.step else ""
        parts = [f"{stage.method}: {stage.name}{steps}", *new, *([ending] if ending else [])]
        get_console().print(printable("  ".join(parts)), markup=False, soft_wrap=True)

    def _relay(self, console: Console) -> None:
        """Print the complete lines that workers have written since the last call."""
        assert self.worker_errors is not None
        text = complete_lines(self.worker_errors, self._relayed)
        self._relayed += len(text)
        if text:
            lines = printable(text.decode(errors="replace").rstrip("\n"))
            style = "yellow" if lines.startswith("warning: ") else ""
            console.print(Text(lines, style=style), soft_wrap=True, highlight=False)

"""The progress of a long command: a bar on a terminal, otherwise a line every 30 seconds."""

import multiprocessing
import time
from collections.abc import Mapping
from typing import Any, Self

from spa.run.console import get_console, is_quiet, printable

SECONDS_BETWEEN_LINES = 30.0


class ProgressLine:
    """Context manager that shows the stage, step, time left and latest values of a command; nothing
    if the console is quiet.

    A worker process always prints lines, which begin with the name of its run, because several
    workers share a terminal.
    """

    def __init__(
        self, stage: str, *, total: int | None = None, start: int = 0, name: str = ""
    ) -> None:
        """`start`: number of steps that an earlier run completed."""
        worker = multiprocessing.parent_process() is not None
        self._stage = f"{name} {stage}" if worker and name else stage
        self._total = total
        self._first = start
        self._shown: dict[str, tuple[str, int]] = {}
        self._started = time.monotonic()
        # In the past, so that the first step prints a line.
        self._last_line = self._started - SECONDS_BETWEEN_LINES
        self._bar: Any = None
        if get_console().is_terminal and not is_quiet() and not worker:
            self._bar, self._task = _bar(stage, total, start)
            self._bar.start()

    def update(self, step: int, values: Mapping[str, str] | None = None) -> None:
        """Show that `step` steps are done, and the values by label.

        A bar shows the latest value of each label, with its step if that is earlier. A line shows
        only values that are new since the previous line.
        """
        self._shown |= {label: (value, step) for label, value in (values or {}).items()}
        if self._bar is not None:
            from rich.markup import escape

            # rich would read a `[` in a value as markup.
            text = "  ".join(
                f"{label} {value}" + (f" @{since}" if since < step else "")
                for label, (value, since) in self._shown.items()
            )
            self._bar.update(self._task, completed=step, values=escape(printable(text)))
        elif not is_quiet():
            self._line(step)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _line(self, step: int) -> None:
        """Print a line with the values since the previous line, unless that was printed less than
        `SECONDS_BETWEEN_LINES` ago. The last step is always printed."""
        now = time.monotonic()
        if now - self._last_line < SECONDS_BETWEEN_LINES and step != self._total:
            return
        self._last_line = now
        text = "  ".join(f"{label} {value}" for label, (value, _) in self._shown.items())
        self._shown.clear()
        of = f"/{self._total}" if self._total else ""
        left = self._seconds_left(step, now)
        ending = f"  ({clock(left)} left)" if left is not None else ""
        get_console().print(
            printable(f"[{self._stage}] step {step}{of}  {text}{ending}"),
            markup=False,
            soft_wrap=True,
        )

    def _seconds_left(self, step: int, now: float) -> float | None:
        # Steps of earlier processes are not counted, because the elapsed time covers only this
        # process.
        done = step - self._first
        if not self._total or done <= 0:
            return None
        return (now - self._started) / done * max(self._total - step, 0)


def _bar(stage: str, total: int | None, start: int) -> tuple[Any, Any]:
    from rich import progress
    from rich.markup import escape

    columns = (
        progress.TextColumn("[bold]{task.description}", markup=True),
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[values]}", markup=True),
    )
    bar = progress.Progress(*columns, console=get_console(), expand=False)
    return bar, bar.add_task(escape(printable(stage)), total=total, completed=start, values="")


def clock(seconds: float) -> str:
    """A duration as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

"""Watchdog that ends a process without progress and reports where it hangs.

Progress is a call of `beat` (for each token, turn, API response or micro-batch), of a timer, or of
`Recorder.log`. Time while the process is suspended (SIGSTOP, a sleeping machine) does not count: a
gap between two checks counts as at most two check intervals.
"""

import faulthandler
import itertools
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import IO

from spa.run.signals import dump_stacks_on_signal

STATUS = 3
"""Exit status of a process that the watchdog ended."""
BACKUP_S = 60.0
"""Seconds of CPU time per core, beyond the time-out, after which the kernel ends the process. This
is needed if the interpreter is blocked, so that the watchdog's thread cannot run."""
LONGEST_LOOK_S = 5.0
NOTICE_S = 300.0
"""Interval in seconds at which a long step logs what it is doing."""

_LOGGER = logging.getLogger("spa.run")
# Advancing `itertools.count` is atomic in CPython, so any thread may call `beat` without a lock.
_BEATS = itertools.count()
_LAST_BEAT = [0]


def beat() -> None:
    """Record progress. It is called for each token, turn, API response and micro-batch."""
    _LAST_BEAT[0] = next(_BEATS)


def beats() -> int:
    """Return the number of the latest beat. It changes whenever progress is recorded."""
    return _LAST_BEAT[0]


class Watchdog:
    """Background thread that ends the process if there is no progress for `timeout_s` seconds
    (None: never).

    Before that, it writes the stacks of all threads to the file `path` (None: stderr). Until
    `close`, `kill -USR1 PID` writes the stacks to the same file. During a long step, it also logs
    every few minutes what the stage `name` is doing.

    If C code blocks the interpreter, this thread cannot run. Then the kernel ends the process
    (SIGPROF) as soon as it has used the CPU time of all cores for `timeout_s` + `BACKUP_S` seconds.
    A suspended process uses no CPU time.
    """

    def __init__(self, path: Path | None, timeout_s: float | None, *, name: str = "") -> None:
        self.timeout_s = timeout_s
        self._name = name
        self._step_began = self._last_notice = time.monotonic()
        self._path = path
        self._file: IO[str] = sys.stderr if path is None else path.open("a", encoding="utf-8")
        self._what = "the start"
        self._moved = False
        self._closed = threading.Event()
        if path is not None:
            faulthandler.register(signal.SIGUSR1, file=self._file, all_threads=True)
        if timeout_s is not None:
            threading.Thread(
                target=self._watch, args=(timeout_s,), daemon=True, name="spa-watchdog"
            ).start()

    def beat(self, what: str, *, step: bool = False) -> None:
        """Record progress. `what` describes the work that begins. Set `step` if a step was just
        finished; the time of the next step then starts."""
        self._what = what
        self._moved = True
        if step:
            self._step_began = self._last_notice = time.monotonic()

    def close(self) -> None:
        """Stop watching."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self.timeout_s is not None:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if self._path is not None:
            dump_stacks_on_signal()
            self._file.close()

    def _watch(self, timeout_s: float) -> None:
        # There are at least 20 checks per time-out, unless it is below 0.4 s. A stall is therefore
        # detected at most 10 % (two checks) late.
        look = max(0.02, min(LONGEST_LOOK_S, timeout_s / 20))
        idle = 0.0
        seen = beats()
        before = time.monotonic()
        while True:
            if not self._closed.is_set():
                # Each check restarts the timer, so it expires only if this thread cannot run. It
                # counts the CPU time of all threads together, hence the factor for cores.
                signal.setitimer(signal.ITIMER_PROF, (timeout_s + BACKUP_S) * (os.cpu_count() or 1))
            if self._closed.wait(look):
                signal.setitimer(signal.ITIMER_PROF, 0)
                return
            now = time.monotonic()
            count = beats()
            moved = self._moved
            # A gap counts as at most two checks. A longer gap means that the process was suspended,
            # or that this thread could not run; the timer covers the second case.
            idle = 0.0 if moved or count != seen else idle + min(now - before, 2 * look)
            seen = count
            before = now
            self._moved = False
            if idle >= timeout_s:
                self._end(timeout_s)
            if now - self._last_notice >= NOTICE_S:
                self._last_notice = now
                minutes = (now - self._step_began) / 60
                _LOGGER.info("%s: %s, for %.0f minutes so far", self._name, self._what, minutes)

    def _end(self, timeout_s: float) -> None:
        place = "above" if self._path is None else f"in {self._path}"
        # faulthandler needs a file descriptor, which a replaced sys.stderr may lack.
        if self._path is not None or hasattr(self._file, "fileno"):
            faulthandler.dump_traceback(self._file, all_threads=True)
        _LOGGER.error(
            "no progress for %g s in %s (trainer.stall_timeout_s). The stack of every thread is %s. The "
            "process ends; run the same command again to resume from the last checkpoint.",
            timeout_s,
            self._what,
            place,
        )
        # `sys.exit` would only end this thread, and exit handlers might hang, too.
        os._exit(STATUS)

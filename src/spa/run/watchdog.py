"""Watchdog: a stage that makes no progress reports where it hangs and exits.

Progress is a beat (a token, turn, API response or micro-batch), a timer or a log line. Time counts
only while this process could have worked: a gap between two checks counts as at most two check
intervals. So a process that was suspended (SIGSTOP, a sleeping machine) is not ended, nor is one
that loses an episode to a time-out every minute.
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

from spa.run.signals import stacks_on_request

STATUS = 3
"""Exit status of a process that the watchdog ended."""
BACKUP_S = 60.0
"""Seconds after the time-out at which the kernel ends the process if the interpreter is blocked and
the watchdog's own thread cannot run."""
LONGEST_LOOK_S = 5.0
NOTICE_S = 300.0
"""Interval in seconds at which a long step logs what it is doing."""

_LOGGER = logging.getLogger("spa.run")
# Advancing `itertools.count` is atomic in CPython, so any thread may beat without a lock.
_BEATS = itertools.count()
_LAST_BEAT = [0]


def beat() -> None:
    """Record progress: a token of a batch, a turn of an episode, a response of a server, a
    micro-batch."""
    _LAST_BEAT[0] = next(_BEATS)


def beats() -> int:
    """The number of the latest beat: two calls return different numbers if progress was recorded
    between them."""
    return _LAST_BEAT[0]


class Watchdog:
    """Ends the process if there is no progress for `timeout_s` seconds, after writing the stacks of
    all threads to `path` (None: stderr). Until `close`, `kill -USR1 PID` writes the stacks to the
    same place; afterwards, to stderr. Without `timeout_s` it never ends the process. During a long
    step, it logs every few minutes what the stage `name` is doing.

    If C code blocks the interpreter, so that no Python runs, the kernel ends the process (SIGPROF)
    once its threads have used as much CPU time as all cores provide in `timeout_s` + `BACKUP_S`
    seconds. CPU time does not pass while the process is suspended.
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
        """Record progress. what: the work that follows. step: whether a step is done."""
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
            stacks_on_request()
            self._file.close()

    def _watch(self, timeout_s: float) -> None:
        # Usually twenty checks or more per time-out: a stall is detected at most two checks, or 10
        # %, late.
        look = max(0.02, min(LONGEST_LOOK_S, timeout_s / 20))
        idle = 0.0
        seen = beats()
        before = time.monotonic()
        while True:
            if not self._closed.is_set():
                # The timer is set again at each check, so it expires only if this thread cannot
                # run. It counts the CPU time of all threads together, hence the number of cores.
                signal.setitimer(signal.ITIMER_PROF, (timeout_s + BACKUP_S) * (os.cpu_count() or 1))
            if self._closed.wait(look):
                signal.setitimer(signal.ITIMER_PROF, 0)
                return
            now = time.monotonic()
            count = beats()
            moved = self._moved
            # A gap counts as at most two checks. In a longer one the process was suspended, or this
            # thread could not run, which the timer covers.
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
        # faulthandler writes to a file descriptor; a replaced sys.stderr may have none.
        if self._path is not None or hasattr(self._file, "fileno"):
            faulthandler.dump_traceback(self._file, all_threads=True)
        _LOGGER.error(
            "no progress for %g s in %s (trainer.stall_timeout_s). The stack of every thread is %s. The "
            "process ends; run the same command again to resume from the last checkpoint.",
            timeout_s,
            self._what,
            place,
        )
        # sys.exit would raise in this thread only, and exit handlers may hang like the rest.
        os._exit(STATUS)

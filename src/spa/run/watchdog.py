"""Nothing waits for ever: a stage in which nothing moves says where it hangs and ends.

What moves are beats (tokens, turns, answers, micro-batches), timers and lines. Time counts only
while this process could have worked: of a gap between two looks, at most two looks' length. So a
process that was suspended (SIGSTOP, a machine that slept) continues, and so does one that loses an
episode to a time-out every minute.
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
"""Delay in seconds after which C code takes over, if something holds the interpreter and Python
code cannot run."""
LONGEST_LOOK_S = 5.0
NOTICE_S = 300.0
"""Seconds in a step after which a line says what is happening, and again after as many."""

_LOGGER = logging.getLogger("spa.run")
# Advancing `itertools.count` is atomic in CPython, so that any thread may beat without a lock.
_BEATS = itertools.count()
_LAST_BEAT = [0]


def beat() -> None:
    """Something was done: a token of a batch, a turn of an episode, an answer of a server, a
    micro-batch."""
    _LAST_BEAT[0] = next(_BEATS)


def beats() -> int:
    """A number that has changed if anything was done since it was last read."""
    return _LAST_BEAT[0]


class Watchdog:
    """Ends the process if nothing moves for `timeout_s` seconds, after the stacks of all threads
    have been written to `path` (None: to stderr). `kill -USR1 PID` writes them there as long as it
    watches, and then to stderr. Without `timeout_s` it never ends anything. While a step takes
    long, a line says every few minutes what the stage `name` does.

    If C code holds the interpreter, so that no Python runs, the kernel ends the process (SIGPROF)
    when it has used as much processor time as all cores have in that time. Processor time does not
    pass while the process is suspended.
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
        """Progress was made; `what` comes next. `step`: a step is done."""
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
        # Usually twenty checks or more per time-out:
        # a stall is noticed at most two checks, or 10 %, late.
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
            # A gap counts as at most two checks. In a longer one the process was suspended,
            # or this thread could not run, for which there is the timer.
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

"""Nothing waits for ever: a stage that makes no progress says where it hangs and ends."""

import faulthandler
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import IO

STATUS = 3
"""Exit status of a process that the watchdog ended."""
BACKUP_S = 60.0
"""How much later C code takes over, if Python code cannot run because something holds the interpreter."""

_LOGGER = logging.getLogger("spa.run")


class Watchdog:
    """Ends the process if `beat` is not called for `timeout_s` seconds, after the stacks of all threads have been
    written to `path`. `kill -USR1 PID` writes them there at any time. None: it never ends anything."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._path = path
        self._file: IO[str] = path.open("a", encoding="utf-8")
        self._what, self._last = "the start", time.monotonic()
        self._closed = threading.Event()
        faulthandler.register(signal.SIGUSR1, file=self._file, all_threads=True)
        if timeout_s is not None:
            threading.Thread(target=self._watch, args=(timeout_s,), daemon=True, name="spa-watchdog").start()
        self.beat(self._what)

    def beat(self, what: str) -> None:
        """Progress was made; `what` comes next."""
        self._what, self._last = what, time.monotonic()
        if self.timeout_s is not None:
            faulthandler.dump_traceback_later(self.timeout_s + BACKUP_S, exit=True, file=self._file)

    def close(self) -> None:
        """Stop watching."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self.timeout_s is not None:
            faulthandler.cancel_dump_traceback_later()
        faulthandler.unregister(signal.SIGUSR1)
        self._file.close()

    def _watch(self, timeout_s: float) -> None:
        while not self._closed.wait(max(0.05, min(5.0, self._last + timeout_s - time.monotonic()))):
            if time.monotonic() - self._last < timeout_s:
                continue
            faulthandler.dump_traceback(self._file, all_threads=True)
            _LOGGER.error(
                "no progress for %g s in %s (trainer.stall_timeout_s). Where every thread stands is in %s. The process "
                "ends; start the same command again to go on from the last checkpoint.",
                timeout_s,
                self._what,
                self._path,
            )
            os._exit(STATUS)

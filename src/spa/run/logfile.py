"""`log.txt`: what a stage said, with times, and why it stopped."""

import logging
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from spa.run.console import ensure_logging, printable
from spa.run.signals import StopRequested

_LOGGER = logging.getLogger("spa")


class _Handler(logging.FileHandler):
    """A log that cannot be written (a full disk) says so once and does not fill the console with
    tracebacks."""

    def handleError(self, record: logging.LogRecord) -> None:
        # Before the warning, which would otherwise come back to this handler.
        _LOGGER.removeHandler(self)
        _LOGGER.warning("%s cannot be written: %s", self.baseFilename, sys.exc_info()[1])


class LogFile:
    """Appends what the logger "spa" says to a file until it is closed. Also a context manager,
    which writes down the exception that ends its block. A file that is being written to already is
    left to the one who opened it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be written."""
        ensure_logging()
        self._handler: logging.FileHandler | None = None
        open_now = [h.baseFilename for h in _LOGGER.handlers if isinstance(h, logging.FileHandler)]
        if os.path.abspath(path) in open_now:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handler = _Handler(path, encoding="utf-8", errors="backslashreplace")
        self._handler.setFormatter(_PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
        _LOGGER.addHandler(self._handler)

    def stopped(self, error: BaseException) -> None:
        """Write what stopped the stage; the code that catches it tells the console."""
        if self._handler is not None:
            why = (type(error), error, error.__traceback__)
            text = "stopped by %s"
            name = type(error).__name__
            level = logging.ERROR
            if isinstance(error, StopRequested):  # nothing went wrong
                name = error.name
                why = None
                level = logging.INFO
            record = logging.LogRecord("spa", level, __file__, 0, text, (name,), why)
            self._handler.handle(record)

    def close(self) -> None:
        """Close the file. Calling it again does nothing."""
        if self._handler is not None:
            _LOGGER.removeHandler(self._handler)
            self._handler.close()
            self._handler = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.stopped(error)
        self.close()


class _PlainFormatter(logging.Formatter):
    """Log lines that are safe to show with `cat`."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))

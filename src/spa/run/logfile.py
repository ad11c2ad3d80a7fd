"""`log.txt`: what a stage said, with times, and why it stopped."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spa.run.console import ensure_logging, printable
from spa.run.signals import StopRequested

_LOGGER = logging.getLogger("spa")


class _Handler(logging.FileHandler):
    """A log that cannot be written (a full disk) says so once and does not fill the console with
    tracebacks."""

    def handleError(self, record: logging.LogRecord) -> None:
        # Remove this handler first: the warning would be passed to it again.
        _LOGGER.removeHandler(self)
        _LOGGER.warning(
            "cannot write the log file %s (%s); later messages appear only on the console",
            self.baseFilename,
            sys.exc_info()[1],
        )


@contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Append the messages of the logger "spa", and the exception that ends the block, to a file.
    Raises OSError if the file cannot be written."""
    ensure_logging()
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _Handler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(_PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    _LOGGER.addHandler(handler)
    try:
        yield
    except BaseException as error:
        # The error goes only to the file: the code that catches it prints it on the console.
        handler.handle(_ending(error))
        raise
    finally:
        _LOGGER.removeHandler(handler)
        handler.close()


def _ending(error: BaseException) -> logging.LogRecord:
    if isinstance(error, StopRequested):  # nothing went wrong
        return logging.LogRecord(
            "spa", logging.INFO, __file__, 0, "stopped by %s", (error.name,), None
        )
    why = (type(error), error, error.__traceback__)
    name = type(error).__name__
    return logging.LogRecord("spa", logging.ERROR, __file__, 0, "stopped by %s", (name,), why)


class _PlainFormatter(logging.Formatter):
    """Log lines that are safe to show with `cat`."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))

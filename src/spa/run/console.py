"""Console output and `log.txt`: a console for results on stdout, and a console for everything else
on stderr. A stage also writes the messages of the logger "spa" to its log file.

Progress, messages and warnings go to stderr, so that results can be piped.
"""

import logging
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from spa.errors import ConfigError
from spa.run.signals import StopRequested

_LOGGER = logging.getLogger("spa")

LEVELS = ("DEBUG", "INFO", "WARNING")
"""Values of `SPA_LOG`. DEBUG logs every detail, INFO is the default, and WARNING logs only warnings
and errors."""


@dataclass
class _State:
    """Output options of the command line, and the console built from them."""

    console: Console | None = None
    quiet: bool = False
    debug: bool = False


_STATE = _State()


def printable(text: str) -> str:
    """Escape characters of `text` that could mislead a terminal or a reader.

    Control characters (including terminal escapes), characters that change the writing direction,
    and lone surrogates become `\\x1b`-style escapes. Newlines and tabs remain.
    """
    if text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return text.translate({ord(char): _escape(char) for char in set(text) if not _harmless(char)})


def _harmless(char: str) -> bool:
    # Controls (Cc), direction marks and zero-width characters (Cf), lone surrogates (Cs), and
    # line and paragraph separators (Zl, Zp).
    return char in "\n\t" or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _escape(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def write_out(text: str) -> None:
    """Write the result of a command to stdout. All commands use this function, because it escapes
    unsafe characters that the text of environments and files may contain."""
    sys.stdout.write(printable(text))


class _ConsoleHandler(logging.Handler):
    """Print log records as lines on the shared console, above a progress bar if one is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "file_only", False) and not _STATE.debug:
            return
        style = {logging.WARNING: "yellow", logging.ERROR: "red", logging.DEBUG: "dim"}.get(
            record.levelno, ""
        )
        prefix = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        # A Text, because rich reads `[…]` in a str as markup. With `soft_wrap` a record is one line
        # even on a narrow terminal.
        line = Text(printable(prefix + self.format(record)), style=style)
        get_console().print(line, soft_wrap=True, highlight=False)


class _Console(Console):
    """A console that raises BrokenPipeError if the reader has closed the pipe."""

    def on_broken_pipe(self) -> None:
        # rich itself would exit with status 1; the command line treats a closed pipe as success.
        raise BrokenPipeError


FILE_ONLY = {"file_only": True}
"""`extra` argument of a log call that marks the message as internal: it goes to `log.txt`, and to
the console only with `SPA_LOG=DEBUG`."""


class _Notices(Console):
    """A console that stops printing if the reader has closed the pipe, so that the work
    continues."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


def results_console() -> Console:
    """The console for results, on stdout."""
    console = _Console(file=sys.stdout, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 1000  # a pipe has no width; in a console this wide nothing is wrapped
    return console


def get_console() -> Console:
    """The console for progress and messages, on stderr. Created on first use, and again if
    `sys.stderr` was replaced."""
    if _STATE.console is None or _STATE.console.file is not sys.stderr:
        _STATE.console = _Notices(file=sys.stderr, highlight=False)
    return _STATE.console


def set_verbosity(*, quiet: bool = False, debug: bool = False) -> None:
    """Set the verbosity of the console: only warnings and errors (`quiet`), every detail (`debug`),
    or messages and warnings. Installs the console's log handler if it is missing."""
    _STATE.quiet = quiet
    _STATE.debug = debug
    if not any(isinstance(handler, _ConsoleHandler) for handler in _LOGGER.handlers):
        _LOGGER.addHandler(_ConsoleHandler())
        # The root logger of an application would print every message a second time.
        _LOGGER.propagate = False
    _LOGGER.setLevel(logging.DEBUG if debug else logging.INFO)
    for handler in _LOGGER.handlers:
        if isinstance(handler, _ConsoleHandler):
            handler.setLevel(logging.WARNING if quiet else logging.DEBUG)


def is_quiet() -> bool:
    """Return whether only warnings and errors are shown."""
    return _STATE.quiet


def is_debug() -> bool:
    """Return whether every detail is shown."""
    return _STATE.debug


def verbosity_from(environment: Mapping[str, str]) -> None:
    """Set the verbosity by the environment variable `SPA_LOG`. Raises ConfigError if its value is
    not in `LEVELS`."""
    level = environment.get("SPA_LOG", "").upper() or "INFO"
    if level not in LEVELS:
        raise ConfigError(
            f"the environment variable SPA_LOG is {level!r}; set SPA_LOG to {', '.join(LEVELS)}, or unset "
            "the variable"
        )
    set_verbosity(quiet=level == "WARNING", debug=level == "DEBUG")


def same_verbosity() -> Callable[[], None]:
    """Return a function that, called in another process, sets this process's verbosity there."""
    return partial(set_verbosity, quiet=_STATE.quiet, debug=_STATE.debug)


def worker_console(errors: Path | None) -> Callable[[], None]:
    """Return a function that sets up the console in a worker process.

    Workers show only warnings and errors, or every detail if this process does. Their stderr goes
    to the file `errors`, or to the stderr of this process if it is None.
    """
    return partial(_set_worker_console, errors, debug=_STATE.debug)


def _set_worker_console(errors: Path | None, *, debug: bool) -> None:
    if errors is not None:
        # Redirect the descriptor, not only `sys.stderr`: faulthandler and C libraries write to it
        # directly.
        descriptor = os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(descriptor, 2)
        os.close(descriptor)
    set_verbosity(quiet=not debug, debug=debug)


def ensure_logging() -> None:
    """Install the log handler with the default verbosity unless `set_verbosity` was already called."""
    if not any(isinstance(handler, _ConsoleHandler) for handler in _LOGGER.handlers):
        set_verbosity(quiet=_STATE.quiet, debug=_STATE.debug)


class _Handler(logging.FileHandler):
    """A log file handler that reports an unwritable file (a full disk) once, without filling the
    console with tracebacks."""

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
    """Formatter that escapes log lines, so that they are safe to show with `cat`."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))

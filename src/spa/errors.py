"""Errors that the user can fix, and errors of environments. The command line prints them without a
traceback and exits with status 2."""

import difflib
from collections.abc import Iterable


def one_line(error: object) -> str:
    """Return the text of an error, or of any other object, on one line."""
    return " ".join(str(error).split())


def nearest(name: object, valid: Iterable[str]) -> str:
    """Return a hint for an error message: the valid name closest to `name`, or all valid names if
    none is close."""
    names = sorted(valid)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(names)}"


class SpaError(Exception):
    """An error for users. The message says what is wrong, where (key path, file, line), and how to
    fix it."""


class ConfigError(SpaError):
    """A configuration cannot be used; the message lists every problem found."""


class DataError(SpaError):
    """A data file is missing, corrupt or incomplete; the message names file and line."""


class NoRunError(DataError):
    """A directory contains no files of a run."""


class ModelError(SpaError):
    """A model, tokenizer or checkpoint cannot be used."""


class TrainingError(SpaError):
    """Training had to stop; the message gives the reason and the last good checkpoint."""


class EnvFault(Exception):
    """An environment hung, crashed or returned invalid values; the message names the call. In a
    rollout, only the episode fails, not the run."""

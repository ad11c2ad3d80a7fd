"""Errors that are the user's to solve, or an environment's. The command line prints them without a
traceback and exits with status 2."""

import difflib
from collections.abc import Iterable


def one_line(error: object) -> str:
    """Text of an error, or of anything else, on one line."""
    return " ".join(str(error).split())


def nearest(name: object, valid: Iterable[str]) -> str:
    """A hint that names the closest valid name, or all of them."""
    names = sorted(valid)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"valid: {', '.join(names)}"


class SpaError(Exception):
    """Error for users: the problem, its place (key path, file, line), and the remedy."""


class ConfigError(SpaError):
    """A configuration cannot be used; the message lists every problem found."""


class DataError(SpaError):
    """A data file is missing, corrupt or lacks something; the message names file and row."""


class NoRunError(DataError):
    """A directory has no files of a run."""


class ModelError(SpaError):
    """A model, tokenizer or checkpoint cannot be used."""


class TrainingError(SpaError):
    """Training had to stop; the message says why and where the last good checkpoint is."""


class EnvFault(Exception):
    """An environment hung, died or returned nonsense; the text says which call and how. It costs
    its episode, and no run: only a command that does nothing but play it ends."""

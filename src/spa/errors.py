"""Errors that are the user's to solve, or an environment's. The command line prints them without a
traceback and exits with status 2."""


def one_line(error: object) -> str:
    """What an error, or anything else, says, on one line."""
    return " ".join(str(error).split())


class SpaError(Exception):
    """What is wrong, where (key path, file, row), and what to do about it."""


class ConfigError(SpaError):
    """A configuration cannot be used; the message lists every problem found."""


class DataError(SpaError):
    """A data file is missing, corrupt or lacks something; the message names file and row."""


class ModelError(SpaError):
    """A model, tokenizer or checkpoint cannot be used."""


class TrainingError(SpaError):
    """Training had to stop; the message says why and where the last good checkpoint is."""


class EnvFault(Exception):
    """An environment hung, died or returned nonsense; the text says which call and how. It costs
    its episode, and no run: only a command that does nothing but play it ends."""

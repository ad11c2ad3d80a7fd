"""Helpers that commands share: parse overrides and common flags, set the log level, and print
results."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from spa.errors import ConfigError

CONFIG_HELP = (
    "a shipped configuration (see `spa config list`), a YAML file, or a folder with a YAML file"
)


def add_parallel(parser: argparse.ArgumentParser, default: int | None = None) -> None:
    """Add `--parallel N`. Without a `default`, `compare.parallel` of the configuration applies."""
    shown = "compare.parallel" if default is None else str(default)
    parser.add_argument(
        "--parallel",
        type=int,
        default=default,
        metavar="N",
        help=f"number of CPU processes that run at a time (default: {shown}); on GPUs, spa uses all GPUs",
    )


ENVIRONMENTS = "configuration that defines the environment tags (default: base)"


def add_environment(parser: argparse.ArgumentParser, config_help: str = ENVIRONMENTS) -> None:
    """Add the positional argument TAG (an environment) and the option `--config` (the configuration
    that defines it) to a `spa env` command."""
    parser.add_argument(
        "tag",
        metavar="TAG",
        help="environment: a tag, an environment type, or your own class as module:Class",
    )
    parser.add_argument("--config", default="base", metavar="CONFIG", help=config_help)


def split_overrides(
    args: Sequence[str], parser: argparse.ArgumentParser
) -> tuple[list[str], list[str]]:
    """Split arguments into the parser's own (including values of its options) and the overrides of
    the configuration."""
    valued = value_options(parser)
    words: list[str] = []
    overrides: list[str] = []
    for place, arg in enumerate(args):
        # In `--sweep lr=1,2`, `lr=1,2` is the value of an option, not an override.
        is_value = place > 0 and args[place - 1] in valued
        (overrides if is_override(arg) and not is_value else words).append(arg)
    return words, overrides


def value_options(parser: argparse.ArgumentParser) -> set[str]:
    """Return the option strings of a parser that take a value, such as `--steps`."""
    # argparse has no public list of options. An option with nargs == 0 is a flag without a value.
    return {
        text for action in parser._actions if action.nargs != 0 for text in action.option_strings
    }


def is_override(arg: str) -> bool:
    """Return whether an argument is `key=value`, `+key=value` or `~key`, and neither an option nor
    a path (sweep folders have names such as `gamma=0.9`)."""
    key, sign, _ = arg.partition("=")
    return bool(sign or arg.startswith("~")) and not key.startswith("-") and "/" not in key


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add flags for the most common settings. Each flag sets one key, like a `key=value`
    override."""
    group = parser.add_argument_group("settings")
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="model to train: a Hub name, a folder, smollm2 or builtin:tiny (sets model_path)",
    )
    group.add_argument(
        "--steps",
        type=positive_number,
        metavar="N",
        help="number of PPO steps (sets trainer.total_training_steps)",
    )
    group.add_argument(
        "--output-dir", metavar="FOLDER", help="folder of the run (sets trainer.run_dir)"
    )


def settings(options: argparse.Namespace) -> list[str]:
    """Return the overrides from the flags of `add_settings`, followed by the `key=value` overrides
    of the command line."""
    from spa.api.settings import value_text

    flags = {
        "model_path": options.model,
        "trainer.total_training_steps": options.steps,
        "trainer.run_dir": options.output_dir,
    }
    # Overrides written as key=value come last, so they win over the flags.
    return [
        *(f"{key}={value_text(value)}" for key, value in flags.items() if value is not None),
        *options.overrides,
    ]


def names(text: str) -> list[str]:
    """Split a comma-separated list of names. Used as the argparse `type` of options such as
    `--methods a,b`."""
    return [name for part in text.split(",") if (name := part.strip())]


def positive_number(text: str) -> int:
    """Parse a whole number of at least 1. Used as an argparse `type`."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1; give a number of at least 1")
    return value


def whole_number(text: str) -> int:
    """Parse a whole number of at least 0, such as a seed. Used as an argparse `type`."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative; give a number of at least 0")
    return value


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Add `--quiet` and `--debug`."""
    parser.add_argument(
        "--quiet",
        action="store_true",
        help="log only warnings and errors (equal to SPA_LOG=WARNING)",
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        help="log all details, and print the tracebacks of errors (equal to SPA_LOG=DEBUG)",
    )


def apply_verbosity(options: argparse.Namespace) -> None:
    """Apply `--quiet` and `--debug`. Without them, the verbosity set by `SPA_LOG` remains."""
    from spa.run.console import set_verbosity

    # --debug wins if both are given.
    if options.quiet or options.debug:
        set_verbosity(quiet=options.quiet and not options.debug, debug=options.debug)


def result_file(path: Path) -> Path:
    """Create the folder of a result file, and return the file's `path`.

    Raises ConfigError if the file cannot be written. Commands call this before work that takes
    hours.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        problem = "the path is a folder" if path.is_dir() else ""
    except OSError as error:
        problem = error.strerror or type(error).__name__
    if not problem and not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "the path is read-only"
    if problem:
        raise ConfigError(f"cannot write the result to {path}: {problem}. Choose another file.")
    return path


def say(lines: Sequence[str]) -> int:
    """Print the result of a command to stdout; return the exit status 0."""
    from spa.run.console import write_out

    write_out("\n".join(lines) + "\n")
    return 0

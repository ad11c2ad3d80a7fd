"""The command line. It starts fast, because it imports only the module of the command that runs."""

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from spa.api import let_waiting_threads_sleep
from spa.commands.arguments import (
    add_verbosity,
    apply_verbosity,
    is_override,
    split_overrides,
    value_options,
)
from spa.commands.table import COMMANDS, actions, overview, overview_of
from spa.errors import SpaError

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
"""Error codes of a full, broken or read-only disk, or of missing permissions."""

NO_PLACE = (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG)
"""Error codes of paths at which no file or folder can be created, for example because a file exists
where a folder is needed."""

TOP = tuple(dict.fromkeys(words.partition(" ")[0] for words in COMMANDS))
"""The first words of all commands, such as `run` and `env`."""


def make_parser(name: str) -> argparse.ArgumentParser:
    """Make the parser of the command `name` (one or two words). It has the command's own arguments
    and the flags that all commands share."""
    command = COMMANDS[name]
    parser = argparse.ArgumentParser(
        # Otherwise `compare --seed 1` would be read as `--seeds 1`.
        allow_abbrev=False,
        prog=f"spa {name}",
        description=command.summary[0].upper() + command.summary[1:] + ".",
        epilog=f"example:\n  {command.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # The function `f_arguments`, in the same module as the command `f`, adds the command's
    # arguments. So `--help` imports the module of only one command.
    command.load("_arguments")(parser)
    if command.overrides:
        parser.usage = f"{parser.format_usage().removeprefix('usage: ').rstrip()} [key=value ...]"
    add_verbosity(parser)
    return parser


def parse(name: str, words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of a command. The returned namespace also has `overrides` (the `key=value`
    words) and `typed` (all words)."""
    parser = make_parser(name)
    typed = list(words)
    overrides: list[str] = []
    # Overrides are removed first: `key=value` would otherwise fill an optional positional.
    if COMMANDS[name].overrides:
        words, overrides = split_overrides(words, parser)
    options = parser.parse_intermixed_args(words)
    options.overrides = overrides
    options.typed = typed
    return options


def prepare(args: Sequence[str]) -> tuple[Callable[[argparse.Namespace], int], argparse.Namespace]:
    """Return the function that runs a command, and the parsed options to call it with. Raises
    SpaError if there is no such command."""
    name, words = _name_of(args)
    options = parse(name, words)
    apply_verbosity(options)
    return COMMANDS[name].load(), options


def execute(args: Sequence[str]) -> int:
    """Run a command and return its exit status. Raises SpaError for errors that the user can
    fix."""
    run, options = prepare(args)
    return run(options)


def _name_of(args: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name of the command with which `args` begin, and the remaining words. Raises
    SpaError if there is no such command."""
    first, *rest = args
    if first in COMMANDS:
        return first, rest
    # `env` alone is not a command but has actions: `env list` is one command of two words.
    inner = [name.partition(" ")[2] for name in actions(first)]
    if not inner:
        raise SpaError(_unknown(first))
    if rest and rest[0] in inner:
        return f"{first} {rest[0]}", rest[1:]
    given = f"there is no action {rest[0]!r}" if rest else "the command needs an action"
    raise SpaError(
        f"{given}; choose from {', '.join(inner)}. `spa {first} --help` explains each action."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 0 success, 2 an error that the user can fix, 130
    interrupted, 143 terminated."""
    # Must run before anything imports torch, which reads the OpenMP environment variables on import.
    let_waiting_threads_sleep()
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        text = _printed_at_once(args)
    except SpaError as error:  # a package registers a command but cannot be imported
        sys.stderr.write(f"spa: {error}\n")
        return 2
    if text is not None:
        sys.stdout.write(text)
        return 0
    # Unknown commands fail here, before the imports below, so that a typo is reported at once.
    if args[0] not in TOP:
        sys.stderr.write(f"spa: {_unknown(args[0])}\n")
        return 2
    from spa.errors import EnvFault
    from spa.run.console import is_debug, printable, verbosity_from
    from spa.run.signals import stoppable

    name = " ".join(args[: 2 if actions(args[0]) else 1])
    try:
        # This is inside the try, so that an invalid SPA_LOG is reported like any other user error,
        # without a traceback.
        verbosity_from(os.environ)
        with stoppable():
            run, options = prepare(args)
            status = run(options)
            # A full disk or a closed pipe may raise only at this flush. Inside the try such an
            # error is handled like an earlier one.
            sys.stdout.flush()
            return status
    except (SpaError, EnvFault) as error:
        trace = traceback.format_exc() if is_debug() else ""
        sys.stderr.write(printable(f"{trace}spa {name}: {error}\n"))
        return 2
    except SystemExit as stop:
        # argparse raises SystemExit. If a user's reward function or template raises it with status
        # 0, the run would look successful.
        if _is_ours(stop):
            raise
        sys.stderr.write(
            f"spa {name}: code outside spa called sys.exit({stop.code!r}), so the command did not finish. "
            "Remove this call and run the command again.\n"
        )
        return 2
    except KeyboardInterrupt as stop:
        return _stopped(stop, args)
    # `spa ... | head` closes the pipe early: nothing went wrong.
    except BrokenPipeError:
        return 0
    except OSError as error:
        # The user can fix a full disk or a file that is in the way. Other OSErrors are bugs and
        # keep their traceback.
        in_the_way = error.errno in NO_PLACE and error.filename is not None
        if error.errno not in DISK and not in_the_way:
            raise
        way_out = (
            "Move the existing file or folder away"
            if in_the_way
            else "Free disk space, fix the permissions"
        )
        trace = traceback.format_exc() if is_debug() else ""
        message = (
            f"{error}. {way_out}, or choose another path. Then run the same command again; spa keeps "
            "finished work."
        )
        sys.stderr.write(printable(f"{trace}spa {name}: {message}\n"))
        return 2


def _printed_at_once(args: Sequence[str]) -> str | None:
    """Return the text of `--help` or `--version`, which need no command; None for other
    arguments."""
    if not args or args[0] in ("-h", "--help", "help"):
        return overview()
    if args[0] == "--version":
        from spa.version import __version__

        return f"spa {__version__}\n"
    return overview_of(args[0]) if actions(args[0]) and args[1:2] in (["--help"], ["-h"]) else None


def _unknown(word: str) -> str:
    import difflib

    near = difflib.get_close_matches(word, TOP, n=1)
    hint = f" Did you mean `spa {near[0]}`?" if near else ""
    return f"there is no command {word!r}.{hint} `spa --help` lists all commands."


def _is_ours(stop: SystemExit) -> bool:
    """Return whether argparse raised this exit (`--help`, a wrong argument); no other code of spa
    exits that way."""
    return any(
        os.path.basename(frame.filename) == "argparse.py"
        for frame in traceback.extract_tb(stop.__traceback__)
    )


def _stopped(stop: KeyboardInterrupt, args: Sequence[str]) -> int:
    """Print what was saved and how to resume; return 128 + the signal's number, as shells do: 143
    after SIGTERM.

    The status must not be 0, which job schedulers would take for a finished run.
    """
    import shlex
    import signal

    from spa.run.signals import StopRequested

    name, saved = (stop.name, stop.saved) if isinstance(stop, StopRequested) else ("SIGINT", "")
    lines = [f"stopped by {name}." + (f" Saved: {saved}." if saved else "")]
    command, _ = _name_of(args)
    if COMMANDS[command].resumes:
        again = resuming(args)
        how = (
            "run the same command again"
            if again == list(args)
            else "run this command, which leaves out the options that start from scratch"
        )
        lines.append(f"To resume, {how}:\n  {shlex.join(['spa', *again])}")
    sys.stderr.write("\n" + " ".join(lines) + "\n")
    return 128 + signal.Signals[name]


def resuming(args: Sequence[str]) -> list[str]:
    """Return a command's words without the options that start from scratch, which would archive the
    work just saved."""
    name, words = _name_of(args)
    own = len(args) - len(words)
    again = [arg for arg in args if not (name in ("run", "compare") and arg == "--from-scratch")]
    positional = [
        place for place, arg in enumerate(again) if not is_override(arg) and not arg.startswith("-")
    ]
    values = _values(name, again)
    positional = [place for place in positional[own:] if place not in values]
    # `spa run CONFIG CKPT True` is the original's way to start from scratch.
    if name == "run" and len(positional) > 2 and again[positional[2]].lower() == "true":
        del again[positional[2]]
    named = [again[place] for place in positional if place < len(again)]
    # trainer.resume_mode=disable, from the command line or a file, would archive the work just
    # saved.
    if not COMMANDS[name].overrides or not _resume_is_disabled(named, again):
        return again
    mode = "trainer.resume_mode"
    return [*(arg for arg in again if arg.partition("=")[0].lstrip("+") != mode), f"{mode}=auto"]


def _values(name: str, args: Sequence[str]) -> set[int]:
    """Return the positions in `args` of words that are values of options."""
    valued = value_options(make_parser(name))
    return {place for place in range(1, len(args)) if args[place - 1] in valued}


def _resume_is_disabled(words: Sequence[str], args: Sequence[str]) -> bool:
    """Return whether the overrides, or a configuration among the words, disable resuming."""
    from spa.config.load import load_config

    overrides = [arg for arg in args if "resume_mode" in arg]
    # Any word of the command may be the name of a configuration. Loading any other word fails, and
    # the word is skipped.
    for name in (*words, "base"):
        try:
            if load_config(name, overrides, stages=()).trainer.resume_mode == "disable":
                return True
        except SpaError:
            continue  # no configuration
    return False


if __name__ == "__main__":
    raise SystemExit(main())

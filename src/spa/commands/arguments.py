"""What the commands have in common: overrides among the arguments, how much is said, what is printed."""

import argparse
import html
import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from spa.errors import ConfigError
from spa.run.console import write_out

if TYPE_CHECKING:
    from http.server import HTTPServer


CONFIG_HELP = "a shipped configuration (`spa config list`), a YAML file, or a folder with one"


def split_overrides(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments proper, and the overrides of the configuration among them."""
    return [arg for arg in args if not is_override(arg)], [arg for arg in args if is_override(arg)]


def is_override(arg: str) -> bool:
    """Whether an argument is `key=value`, `+key=value` or `~key`, and no option and no path: `spa try` writes folders
    such as `gamma=0.9`."""
    key, sign, _ = arg.partition("=")
    return bool(sign or arg.startswith("~")) and not key.startswith("-") and "/" not in key


def whole_number(text: str) -> int:
    """A number of things, or a seed: the type of an argument that is not negative."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is negative")
    return value


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """`--quiet` and `--debug`."""
    parser.add_argument("--quiet", action="store_true", help="only warnings and the result (SPA_LOG=WARNING)")
    parser.add_argument("--debug", action="store_true", help="every detail, tracebacks too (SPA_LOG=DEBUG)")


def apply_verbosity(options: argparse.Namespace) -> None:
    """Follow `--quiet` and `--debug`; without them it stays as the environment chose."""
    from spa.run.console import set_verbosity

    if options.quiet or options.debug:
        set_verbosity(quiet=options.quiet and not options.debug, debug=options.debug)


def result_file(path: Path) -> Path:
    """`path`, with its folder made: hours of work are not to end at a place that takes no file.

    Raises ConfigError if no file can be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        problem = "it is a folder" if path.is_dir() else ""
    except OSError as error:
        problem = error.strerror or type(error).__name__
    if not problem and not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "it is read-only"
    if problem:
        raise ConfigError(f"no result can be written to {path}: {problem}. Choose another file.")
    return path


def say(lines: Sequence[str]) -> int:
    """Print the result of a command to stdout; returns the exit status 0."""
    write_out("\n".join(lines) + "\n")
    return 0


def run_server(server: "HTTPServer", note: str, *, browser: bool, query: str = "") -> int:
    """Serve until interrupted. Writes the address with a note, and opens it in a browser if wanted; returns 0."""
    host, port = server.server_address[:2]
    host = f"[{host!s}]" if ":" in str(host) else host
    address = f"http://{host!s}:{port}/{query}"
    write_out(f"{address}  {note}(Ctrl+C stops it)\n")
    sys.stdout.flush()
    with _opened(address) if browser else nullcontext():
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            server.server_close()
    return 0


@contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open an address in a browser through a file that only this user can read: every user can read command lines, and
    the address may hold a token."""
    with tempfile.TemporaryDirectory(prefix="spa-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(address)}">')
        webbrowser.open(page.as_uri())
        yield

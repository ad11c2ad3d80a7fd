"""The reference page of the command line: `python tools/cli_reference.py docs/cli.md`."""

import argparse
import sys
from pathlib import Path

from spa.cli import make_parser
from spa.commands.table import COMMANDS, actions, groups

HEAD = """# Command line

Every command and its arguments. `spa COMMAND --help` prints the same. All commands take `--quiet` and `--debug`.
Commands with a row `key=value` take settings of the [configuration](configuration.md).
"""
SHARED = ("-h", "--quiet", "--debug")


def reference() -> str:
    """The page in Markdown."""
    parts = [HEAD]
    for group, names in groups().items():
        parts.append(f"## {group}\n")
        for name in names:
            parts += [_section(words) for words in actions(name) or [name]]
    return "\n".join(parts)


def _section(name: str) -> str:
    command = COMMANDS[name]
    lines = [
        f"### spa {name}",
        "",
        f"{command.summary[0].upper()}{command.summary[1:]}. Example: `{command.example}`",
        "",
    ]
    rows = [
        _row(action)
        for action in make_parser(name)._actions
        if not set(action.option_strings) & set(SHARED)
    ]
    rows += ["| `key=value` | a setting of the configuration |"] if command.overrides else []
    return "\n".join([*lines, "| argument | meaning |", "|---|---|", *rows, ""])


def _row(action: argparse.Action) -> str:
    """One argument as a row: its name, and what it means."""
    choices = "" if action.choices is None else f"one of {', '.join(map(str, action.choices))}"
    meaning = "; ".join(
        filter(None, (action.help, choices if choices not in (action.help or "") else ""))
    )
    name = action.metavar if isinstance(action.metavar, str) else action.dest
    if action.option_strings:
        value = (
            ""
            if action.nargs == 0
            else f" {name if not action.choices or action.metavar else 'NAME'}"
        )
        name = ", ".join(action.option_strings) + value
    return f"| `{name}` | {meaning} |".replace("best-of-N|beam-N|search-N", "PLANNER")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")

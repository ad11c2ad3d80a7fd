"""The reference page of the command line, from the parsers of the commands."""

import argparse

from spa.cli import make_parser
from spa.commands.table import COMMANDS, actions, groups
from spa.tables import Table

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
    rows += [("`key=value`", "a setting of the configuration")] if command.overrides else []
    return "\n".join([*lines, Table(("argument", "meaning"), rows).markdown(), ""])


def _row(action: argparse.Action) -> tuple[str, str]:
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
    return f"`{name}`".replace("best-of-N|beam-N|search-N", "PLANNER"), meaning

"""`spa runs`: the runs of a folder as a table."""

import argparse
import time
from pathlib import Path

from spa.run.console import write_out


def runs_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `spa runs`."""
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("runs"),
        metavar="FOLDER",
        help="folder that contains runs (default: runs)",
    )


def runs(options: argparse.Namespace) -> int:
    """Print state, result, seeds and duration of every run. Returns the exit status."""
    from rich.table import Table
    from rich.text import Text

    from spa.report.overview import list_runs
    from spa.run.console import results_console

    lines = list(list_runs(options.folder, time.time()))
    if not lines:
        write_out(f"{options.folder} contains no runs. Name a folder that contains runs.\n")
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "state", "Pass@1 before → after PPO", "seeds", "duration"):
        table.add_column(name, justify="right" if name == "duration" else "left", overflow="fold")
    for line in lines:
        # Text, not str: rich would read brackets in a run's name as markup.
        table.add_row(*map(Text, (line.name, line.state, line.result, line.seeds, line.duration)))
    results_console().print(table)
    return 0

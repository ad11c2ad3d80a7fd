"""`spa runs`: list the runs of a folder in a table."""

import argparse
import time
from pathlib import Path

from spa.run.console import write_out
from spa.tables import Table


def runs_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa runs` to `parser`."""
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("runs"),
        metavar="FOLDER",
        help="folder that contains runs, or a run (default: runs)",
    )


def runs(options: argparse.Namespace) -> int:
    """Print the state, result, seeds and duration of every run. Returns the exit status."""
    from spa_report.overview import list_runs

    lines = list(list_runs(options.folder, time.time()))
    if not lines:
        write_out(f"{options.folder} contains no runs. Name a folder that contains runs.\n")
        return 0
    columns = ("run", "state", "Pass@1 before → after PPO", "seeds", "duration")
    rows = [(line.name, line.state, line.result, line.seeds, line.duration) for line in lines]
    Table(columns, rows, right=(4,)).print()
    return 0

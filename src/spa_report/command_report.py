"""`spa report`: one page about one or more runs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from spa.commands.arguments import result_file
from spa.run.console import write_out
from spa_report import FORMATS


def report_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa report` to `parser`."""
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="folder of a run, for example runs/demo; several folders make one report",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="html",
        help="format of the report: html (default), md, or png (needs matplotlib)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file of the report (default: report.<format> in the first run, or "
        "report-with-<others>.<format> for several runs)",
    )
    parser.add_argument(
        "--figures",
        type=Path,
        metavar="DIR",
        help="also write every chart as PNG and SVG to this folder",
    )


def report(options: argparse.Namespace) -> int:
    """Write the report and print its verdict and path. Returns the exit status."""
    from spa_report.build import write_report

    name = f"{_name(options.runs)}.{options.format}"
    path = result_file(options.output) if options.output else options.runs[0] / name
    made = write_report(options.runs, path, options.format)
    write_out(f"{made.verdict}\n{path}\n")
    if options.figures:
        from spa_report.figures import save_figures

        write_out("".join(f"{figure}\n" for figure in save_figures(made, options.figures)))
    return 0


def _name(runs: Sequence[Path]) -> str:
    """The file name of a report, without suffix. A report on several runs has its own name, so that
    it does not overwrite the report on the first run alone."""
    others = "-".join(run.resolve().name for run in runs[1:])
    # A file system would reject a name that lists many runs.
    return f"report-with-{others[:100]}" if others else "report"

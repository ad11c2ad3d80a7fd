"""`spa report`: one file that says what a run, or a comparison of runs, came to."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from spa.run.console import write_out

FORMATS = ("html", "md", "png")


def main(args: list[str]) -> int:
    """Write the report; prints the result in one sentence and where the file is. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="spa report", description="Write a self-contained report on a run, or on several runs beside each other."
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="directory of a run, for example runs/demo")
    parser.add_argument(
        "--format", choices=FORMATS, default="html", help="html (default), md, or png (with matplotlib)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="default: in the (first) run, report.<format>, or report-with-<others>.<format> for several runs",
    )
    options = parser.parse_args(args)

    from spa.report.build import write_report

    path = options.output or options.runs[0] / f"{_name(options.runs)}.{options.format}"
    report = write_report(options.runs, path, options.format)
    write_out(f"{report.verdict}\n{path}\n")
    return 0


def _name(runs: Sequence[Path]) -> str:
    """The name of a report: that of several runs does not overwrite the first run's own."""
    others = "-".join(run.resolve().name for run in runs[1:])
    return f"report-with-{others[:100]}" if others else "report"

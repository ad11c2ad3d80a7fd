"""`spa report`: one file that says what a run, or a comparison of runs, came to."""

import argparse
import sys
from pathlib import Path

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
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: report.<format> in the (first) run")
    options = parser.parse_args(args)

    from spa.report.build import write_report

    path = options.output or options.runs[0] / f"report.{options.format}"
    report = write_report(options.runs, path, options.format)
    sys.stdout.write(f"{report.verdict}\n{path}\n")
    return 0

"""Figure 1 of the README: Pass@1 of the demo's methods during PPO, from committed data.

python tools/demo_curves.py               # benchmarks/results/demo/curves.json -> SVG
python tools/demo_curves.py --run RUN     # first take the data from a finished demo
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from spa.errors import DataError
from spa.report.charts import Chart, Series
from spa.report.curves import PASS_1, chart
from spa.report.figures import save_chart
from spa.report.reading import open_run
from spa.report.results import list_methods
from spa.run.files import write_atomic

DATA = Path("benchmarks/results/demo/curves.json")
PICTURE = Path("docs/images/demo-curves.svg")


def main(arguments: list[str] | None = None) -> int:
    """Draw the figure. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Draw the learning curves of the demo.")
    parser.add_argument("--run", type=Path, help="a finished demo, whose curves become the data")
    parser.add_argument("--output", type=Path, default=PICTURE)
    options = parser.parse_args(arguments)
    if options.run:
        found = chart(PASS_1, list_methods([open_run(options.run)]))
        if found is None:
            raise DataError(f"{options.run} has recorded no Pass@1")
        write_atomic(DATA, [json.dumps(asdict(found), indent=1) + "\n"])
    stored = json.loads(DATA.read_text(encoding="utf-8"))
    lines = tuple(Series(**series) for series in stored.pop("series"))
    save_chart(Chart(**stored, series=lines), options.output, "--output")
    return 0


if __name__ == "__main__":
    sys.exit(main())

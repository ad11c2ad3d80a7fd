"""Pass@1 of the demo's methods, from committed data: over PPO steps (figure 1 of the README), and over sampled tokens.

python tools/demo_curves.py               # benchmarks/results/demo.parquet -> two SVGs in docs/images
python tools/demo_curves.py --run RUN     # first take the data of figure 1 from a finished demo
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from results import read, write

from spa.errors import DataError
from spa_report.charts import Chart, Series
from spa_report.curves import PASS_1, chart
from spa_report.figures import save_chart
from spa_report.reading import open_run
from spa_report.results import list_methods

PICTURES = Path("docs/images")


def main(arguments: list[str] | None = None) -> int:
    """Draw the figure. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Draw the learning curves of the demo.")
    parser.add_argument(
        "--run", type=Path, help="folder of a finished demo, whose curves become the data"
    )
    parser.add_argument(
        "--output", type=Path, default=PICTURES, help="output folder of the pictures"
    )
    options = parser.parse_args(arguments)
    if options.run:
        curve = chart(PASS_1, list_methods([open_run(options.run)]))
        if curve is None:
            raise DataError(
                f"{options.run} has no recorded Pass@1. Give the folder of a finished demo."
            )
        write("demo", {"curves.json": [json.dumps(asdict(curve), ensure_ascii=False)]})
    stored = read("demo", "curves.json")
    lines = tuple(Series(**series) for series in stored.pop("series"))
    save_chart(Chart(**stored, series=lines), options.output / "demo-curves.svg", "--output")
    save_chart(over_tokens(), options.output / "demo-tokens.svg", "--output")
    return 0


def over_tokens() -> Chart:
    """Pass@1 over all sampled tokens: SPA, and plain PPO with 11 times the steps."""
    data = read("demo", "seed0-same-tokens.json")
    lines = tuple(
        Series(
            label,
            tuple((row["sampled_tokens"] / 1e6, row["pass@1"]) for row in data[key]),
            color=color,
        )
        for color, (label, key) in enumerate((("SPA", "spa curve"), ("plain PPO", "vanilla curve")))
    )
    return Chart(
        "Pass@1", "", lines, x_label="sampled tokens, millions, self-play included", percent=True
    )


if __name__ == "__main__":
    sys.exit(main())

"""Pass@1 of written search, its baseline and its controls over the distance of the goal, from committed data.

python tools/search_curves.py             # benchmarks/results/search/*.json -> an SVG in docs/images
"""

import argparse
import json
import sys
from pathlib import Path

from spa.report.charts import Chart, Series
from spa.report.figures import save_chart

DATA = Path("benchmarks/results/search")
LONGEST = 6
"""Moves of an episode: three turns of two actions."""
PICTURE = Path("docs/images/written-search.svg")
ARMS = {
    "written search": ("search_model_1600", (0, 1, 2)),
    "random play (baseline)": ("random_format_1600", (0, 1, 2)),
    "right actions alone": ("actions_only_1600", (0,)),
    "search of another puzzle": ("search_other_puzzle_1600", (0,)),
    "search with permuted outcomes": ("search_dealt_1600", (0,)),
}


def main(arguments: list[str] | None = None) -> int:
    """Draw the figure. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Draw Pass@1 of written search by distance.")
    parser.add_argument("--output", type=Path, default=PICTURE, help="path of the picture")
    options = parser.parse_args(arguments)
    lines = tuple(
        Series(label, over_distance(name, seeds), color=color)
        for color, (label, (name, seeds)) in enumerate(ARMS.items())
    )
    figure = Chart("Pass@1", "", lines, x_label="moves from the start to the goal", percent=True)
    save_chart(figure, options.output, "--output")
    return 0


def over_distance(name: str, seeds: tuple[int, ...]) -> tuple[tuple[float, float], ...]:
    """(distance, Pass@1 over all puzzles with this distance, on all seeds)."""
    won: dict[int, list[float]] = {}
    for seed in seeds:
        text = (DATA / f"{name}-{seed}-sampled.json").read_text(encoding="utf-8")
        (tag,) = json.loads(text)["tags"].values()
        for row in tag["by_difficulty"]:
            shares = row["pass@1"]
            if row["difficulty"] <= LONGEST:
                won.setdefault(row["difficulty"], []).extend([shares["mean"]] * shares["n"])
    return tuple((distance, sum(shares) / len(shares)) for distance, shares in sorted(won.items()))


if __name__ == "__main__":
    sys.exit(main())

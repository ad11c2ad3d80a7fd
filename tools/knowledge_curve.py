"""Success over the accuracy of single moves, from committed data, on the hidden lake.

python tools/knowledge_curve.py             # benchmarks/results/learned-world.parquet -> an SVG in docs/images
"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from results import read, records, reference_success

from spa.evaluation.statistics import rate_interval
from spa_report.charts import Chart, Series
from spa_report.figures import save_chart

QUESTION = "learned-world"
BOARD = "hidden-lake-4x4"
PICTURE = Path("docs/images/knowledge.svg")
OUTSIDE = "plan-outside-true-1-"
"""Files of planning outside with the checkpoints of one training on single moves."""
PLANNERS = {
    "a program searches breadth first": "search",
    "a program looks one move ahead": "look_ahead",
}
WRITTEN = {
    "SmolLM2 writes a search": [f"true-1-{seed}" for seed in (1, 2)],
    "… from the moves of another world": [f"1-1-{seed}" for seed in (1, 2, 3)],
}
"""Label -> the trainings of written search."""


def main(arguments: list[str] | None = None) -> int:
    """Draw the figure. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Draw success over the accuracy of moves.")
    parser.add_argument("--output", type=Path, default=PICTURE, help="file of the picture")
    options = parser.parse_args(arguments)
    points = checkpoints()
    lines = []
    for label, planner in PLANNERS.items():
        rates = [(100 * found["move_right"], won(found, planner)) for found in points]
        lines.append(
            Series(
                label,
                tuple((x, rate["mean"]) for x, rate in rates),
                tuple((rate["low"], rate["high"]) for _, rate in rates),
                color=len(lines),
            )
        )
    for label, runs in WRITTEN.items():
        lines.append(Series(label, tuple(sorted(map(written, runs))), color=len(lines)))
    for label, rate in (
        ("network on right actions, no moves", fmean(imitators(BOARD).values())),
        ("random actions", reference_success(BOARD)["random"]["mean"]),
    ):
        lines.append(Series(label, ((0, rate), (100, rate)), color=len(lines)))
    chart = Chart(
        "success on the hidden lake",
        "",
        tuple(lines),
        x_label="single moves predicted right, percent",
        percent=True,
        band="95 % interval over puzzles",
        end=100,
    )
    save_chart(chart, options.output, "--output")
    return 0


def checkpoints() -> list[dict[str, Any]]:
    """Planning outside with each checkpoint, the least accurate first."""
    names = [name for name in records(QUESTION) if name.startswith(OUTSIDE)]
    return sorted((read(QUESTION, name) for name in names), key=lambda found: found["move_right"])


def won(found: dict[str, Any], planner: str) -> dict[str, float]:
    """The mean success of a planner, with its interval over puzzles."""
    return asdict(rate_interval([[puzzle[planner] for puzzle in found["puzzles"]]], seed=0))


def written(run: str) -> tuple[float, float]:
    """(moves predicted right in percent, success on development puzzles) of a training of written search."""
    name = f"smol_hidden_lake-search_paths_model-{run}"
    (tag,) = read(QUESTION, f"{name}-sampled.json")["tags"].values()
    right = read(QUESTION, f"{name}-data.json")["search"]["move_right"]
    return 100 * right, tag["pass@1"]["mean"]


def imitators(name: str, learned: int = 1600) -> dict[str, float]:
    """Puzzle of a board -> success of the network on right actions of `learned` puzzles, the mean of its
    trainings."""
    found = read(QUESTION, "right-actions-network.json")[name]
    wins = [training["wins"] for training in found["trainings"][str(learned)].values()]
    return dict(zip(found["puzzle_hashes"], map(fmean, zip(*wins, strict=True)), strict=True))


if __name__ == "__main__":
    sys.exit(main())

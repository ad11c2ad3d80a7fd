"""Written search, its baseline and its controls, from committed data: Pass@1 over the distance of the goal, and success
over PPO.

python tools/search_curves.py             # benchmarks/results/search.parquet -> two SVGs in docs/images
"""

import argparse
import sys
from pathlib import Path

from results import read, read_lines

from spa_report.charts import Chart, Series
from spa_report.figures import save_chart

LONGEST = 6
"""Moves of an episode: three turns of two actions."""
PICTURES = Path("docs/images")
ARMS = {
    "written search": ("search_model_1600", (0, 1, 2)),
    "random play (baseline)": ("random_format_1600", (0, 1, 2)),
    "right actions alone": ("actions_only_1600", (0, 1, 2)),
    "search of another puzzle": ("search_other_puzzle_1600", (0, 1, 2)),
    "search with permuted outcomes": ("search_dealt_1600", (0, 1, 2)),
}
PPO = {
    "written search": ("search_model_1600", (0, 1, 2)),
    "… over a simulator": ("search_simulator_1600", (0, 1, 2)),
    "… 800 examples": ("search_model_800", (0, 1, 2, 3, 4)),
    "random play (baseline)": ("random_format_1600", (0, 1, 2)),
}
TAG = "train/FrozenLakeNoSlip"
BLOCK = 4
"""PPO steps per point; a step has 64 episodes."""


def main(arguments: list[str] | None = None) -> int:
    """Draw the figure. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Draw the figures of written search.")
    parser.add_argument(
        "--output", type=Path, default=PICTURES, help="output folder of the pictures"
    )
    options = parser.parse_args(arguments)
    for name, title, arms, points, x_label in (
        ("written-search", "Pass@1", ARMS, over_distance, "moves from the start to the goal"),
        (
            "written-search-ppo",
            "success in PPO",
            PPO,
            over_tokens,
            "sampled tokens of PPO, thousands",
        ),
    ):
        lines = tuple(
            Series(label, points(*runs), color=color)
            for color, (label, runs) in enumerate(arms.items())
        )
        figure = Chart(title, "", lines, x_label=x_label, percent=True)
        save_chart(figure, options.output / f"{name}.svg", "--output")
    return 0


def over_distance(name: str, seeds: tuple[int, ...]) -> tuple[tuple[float, float], ...]:
    """(distance, Pass@1 over all puzzles with this distance, on all seeds)."""
    won: dict[int, list[float]] = {}
    for seed in seeds:
        (tag,) = read("search", f"{name}-{seed}-sampled.json")["tags"].values()
        for row in tag["by_difficulty"]:
            shares = row["pass@1"]
            if row["difficulty"] <= LONGEST:
                won.setdefault(row["difficulty"], []).extend([shares["mean"]] * shares["n"])
    return tuple((distance, sum(shares) / len(shares)) for distance, shares in sorted(won.items()))


def over_tokens(name: str, seeds: tuple[int, ...]) -> tuple[tuple[float, float], ...]:
    """(sampled tokens in thousands, share of episodes that succeed) for each `BLOCK` PPO steps, mean over seeds."""
    runs = list[list[tuple[float, float]]]()
    for seed in seeds:
        steps = read_lines("search", f"{name}-{seed}-ppo-5e-6-8.jsonl")
        tokens = 0.0
        points = list[tuple[float, float]]()
        for first in range(0, len(steps), BLOCK):
            block = steps[first : first + BLOCK]
            tokens += sum(
                step[f"{TAG}/response_length"] * step[f"{TAG}/episodes"] for step in block
            )
            points.append((tokens / 1e3, sum(step[f"{TAG}/success"] for step in block) / BLOCK))
        runs.append(points)
    return tuple(
        (sum(x for x, _ in block) / len(runs), sum(y for _, y in block) / len(runs))
        for block in zip(*runs, strict=True)
    )


if __name__ == "__main__":
    sys.exit(main())

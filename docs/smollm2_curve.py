"""Writes images/smollm2-curve.svg: what to expect of `smol_frozen_lake_states`, from the metrics of three seeds.

The metrics are in benchmarks/results/smol_frozen_lake_states.parquet. SFT steps are negative, PPO steps positive; bands
are the range over seeds.

    python docs/smollm2_curve.py [FOLDER]
"""

import sys
from pathlib import Path

from spa_report.charts import Chart, Series
from spa_report.figures import save_chart

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from results import read_lines  # pyright: ignore[reportMissingImports]

SFT_STEPS = 60
LINES = (
    ("predictions exact", "wm/pred_exact"),
    ("copy baseline", "wm/copy_exact"),
    ("success, one response a turn", "success"),
)


def values(seed: int, metric: str) -> dict[int, float]:
    """The metric of a seed by step: SFT evaluations on held-out puzzles, then PPO rollouts."""
    found: dict[int, float] = {}
    stages = (("sft", f"val/{metric}", -SFT_STEPS), ("ppo", f"train/FrozenLakeNoSlip/{metric}", 0))
    for stage, key, offset in stages:
        for metrics in read_lines("smol_frozen_lake_states", f"spa-{stage}-seed{seed}.jsonl"):
            if key in metrics:
                found[metrics["step"] + offset] = metrics[key]
    return found


def chart() -> Chart:
    """Mean and range over the seeds of each line."""
    series = []
    for color, (label, metric) in enumerate(LINES):
        seeds = [values(seed, metric) for seed in range(3)]
        steps = sorted(set.intersection(*(set(seed) for seed in seeds)))
        columns = [[seed[step] for seed in seeds] for step in steps]
        points = tuple(
            (float(step), sum(column) / 3) for step, column in zip(steps, columns, strict=True)
        )
        bands = tuple((min(column), max(column)) for column in columns)
        series.append(Series(label=label, points=points, bands=bands, color=color))
    title = "SmolLM2-135M on the 4×4 lake, three seeds (bands: range)"
    return Chart(
        title=title,
        help="",
        series=tuple(series),
        percent=True,
        x_label="SFT step − 60, then PPO step",
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "images"
    save_chart(chart(), folder / "smollm2-curve.svg")

"""Writes images/imagination.json and .svg: the success of random plans, of which the one with the best imagined state
is played, by how often imagination is right. Without a model: the states are true ones, corrupted with probability p.
Models are points next to the curves: what their own `spa eval --plan best-of-8` printed is kept under "models" in
imagination.json.

    python docs/imagination_curve.py [FOLDER]
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from spa.config.load import load_config
from spa.recipes import evaluate
from spa.recipes.policies import find_target
from spa.run.console import set_verbosity
from spa_report.charts import Chart, Series
from spa_report.figures import save_chart

SPOILT = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
PUZZLES, SAMPLES = 64, 2
_SOKOBAN = "{tags: [SimpleSokoban], n_groups: null}"
BOARDS = {
    "FrozenLake 3x3": (),
    "FrozenLake 4x4": ("custom_envs.FrozenLakeNoSlip.env_config.size=4",),
    "Sokoban 5x5": (
        f"es_manager.train.env_configs={_SOKOBAN}",
        f"es_manager.val.env_configs={_SOKOBAN}",
        "custom_envs.SimpleSokoban.env_config.dim_x=5",
        "custom_envs.SimpleSokoban.env_config.dim_y=5",
    ),
}


def measure(board: str, n: int, spoil: float, folder: Path) -> dict[str, float]:
    """Success of the best of `n` random plans, and the share of imagined states that are right."""
    counts = (f"es_manager.val.env_groups={PUZZLES}", f"es_manager.val.group_size={SAMPLES}")
    overrides = (*BOARDS[board], *counts, f"imagine.n={n}")
    cfg = load_config(
        "demo", [*overrides, "imagine.dynamics=simulator", f"imagine.noise_prob={spoil}"]
    )
    found = evaluate.evaluate_target(
        cfg, find_target("random"), output=folder / f"{board}-{n}-{spoil}.json", ks=(1,)
    )
    (tag,) = found["tags"].values()
    rate = {name: round(tag["pass@1"][name], 4) for name in ("mean", "low", "high")}
    return {"spoilt": spoil, "right": found.get("imagination", {}).get("right", 0.0), **rate}


def main(out: Path, n: int = 8) -> None:
    """Measure every board, and write the numbers and the picture."""
    set_verbosity(quiet=True)
    with TemporaryDirectory() as folder:
        curves = {
            board: [measure(board, n, spoil, Path(folder)) for spoil in SPOILT] for board in BOARDS
        }
        alone = {board: measure(board, 1, 0.0, Path(folder))["mean"] for board in BOARDS}
    before = json.loads((out / "imagination.json").read_text(encoding="utf-8"))
    write(
        out,
        {
            "n": n,
            "puzzles": PUZZLES,
            "samples": SAMPLES,
            "alone": alone,
            "curves": curves,
            "models": before.get("models", []),
        },
    )


def write(out: Path, numbers: dict[str, Any]) -> None:
    """imagination.json and .svg of these numbers."""
    (out / "imagination.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    save_chart(chart(numbers), out / "imagination.svg")


def chart(numbers: dict[str, Any]) -> Chart:
    """Success by the share of right states; a board's own random play, and a model's own play, are in the labels."""
    series, alone, n = [], numbers["alone"], numbers["n"]
    for color, (board, points) in enumerate(numbers["curves"].items()):
        ordered = sorted(points, key=lambda point: point["right"])
        series.append(
            Series(
                label=f"{board}; random play alone: {100 * alone[board]:.0f} %",
                points=tuple((100 * point["right"], point["mean"]) for point in ordered),
                bands=tuple((point["low"], point["high"]) for point in ordered),
                color=color,
            )
        )
    for color, point in enumerate(numbers["models"], start=len(series)):
        series.append(
            Series(
                label=f"{point['model']}, {point['board']}; its play alone: {100 * point['alone']:.0f} %",
                points=((100 * point["right"], point["mean"]),),
                color=color,
            )
        )
    title = f"Success of the best of {n} random plans, by percent of imagined states that are right"
    return Chart(title=title, help="", series=tuple(series), percent=True, x_label="right")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "images"))

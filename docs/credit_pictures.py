"""Draw the pictures of docs/methods.md into docs/images.

python docs/credit_pictures.py
"""

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

from spa_bench.estimator_bias.credit import ESTIMATORS, groups_of, judge
from spa_bench.estimator_bias.page import SPECIMENS, verdicts
from spa_bench.estimator_bias.worlds import STOP_OR_GO, WORLDS, enumerate_episodes

HERE = Path(__file__).parent


def main() -> None:
    """Both pictures."""
    mpl.rcParams.update(
        {
            "svg.hashsalt": "spa",
            "font.size": 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    noise(HERE / "images" / "credit-noise.svg")
    bias(HERE / "images" / "credit-bias.svg")


def noise(path: Path) -> None:
    """Plot the number of groups of four whose mean estimate is as long as its own standard
    deviation, by world."""
    names = list(ESTIMATORS)
    figure, axes = plt.subplots(1, len(WORLDS), figsize=(11, 4.2), sharey=True)
    for axis, world in zip(axes, WORLDS, strict=True):
        found = verdicts(world, group_size=4)
        for row, name in enumerate(reversed(names)):
            verdict = found[name]
            color = (
                "#2a6f4e"
                if verdict.error < 1e-9
                else "#c0392b"
                if verdict.angle >= 90
                else "#c98a2b"
            )
            axis.barh(row, verdict.noise**2, color=color, height=0.7)
        axis.set_title(world.name)
        axis.set_xlabel("groups for signal = noise")
    axes[0].set_yticks(range(len(names)), list(reversed(names)))
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def bias(path: Path) -> None:
    """The mean estimate of the gradient of `go` against the group size."""
    episodes, sizes = enumerate_episodes(STOP_OR_GO), (2, 3, 4, 5, 6, 8, 10, 12)
    figure, axis = plt.subplots(figsize=(6, 3.4))
    for name, mark in zip(SPECIMENS, "os^D", strict=True):
        means = [
            float(judge(episodes, groups_of(episodes, size), ESTIMATORS[name]).mean[1])
            for size in sizes
        ]
        axis.plot(sizes, means, marker=mark, markersize=4, label=name)
    axis.axhline(0, color="black", linewidth=0.6)
    axis.set_xlabel("episodes per group")
    axis.set_ylabel("mean estimate (exact: 0.075)")
    axis.legend(frameon=False, loc="center right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()

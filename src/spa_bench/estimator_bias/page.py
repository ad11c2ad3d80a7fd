"""The tables of the estimator benchmark as Markdown."""

from collections.abc import Iterator

from spa.tables import Table
from spa_bench.estimator_bias.credit import ESTIMATORS, Verdict, groups_of, judge
from spa_bench.estimator_bias.worlds import STOP_OR_GO, WORLDS, World, enumerate_episodes

SPECIMENS = (
    "turn_rloo",
    "reward to go minus group mean",
    "leave-one-out mean per turn index",
    "group mean per turn index",
)


def verdicts(world: World, *, group_size: int, critic_error: float = 0.0) -> dict[str, Verdict]:
    """Judge every estimator in a world. Returns the verdicts by estimator name."""
    episodes = enumerate_episodes(world)
    groups = groups_of(episodes, group_size, critic_error=critic_error)
    return {name: judge(episodes, groups, estimator) for name, estimator in ESTIMATORS.items()}


def tables(*, group_size: int = 4, critic_error: float = 0.0) -> list[str]:
    """Lines of Markdown: a table of all estimators for each world, followed by a table of the
    published bias."""
    lines = []
    head = ("estimator", "scale", "bias", "angle", "noise")
    for world in WORLDS:
        lines += [f"### {world.name}", "", f"{world.text[0].upper()}{world.text[1:]}.", ""]
        verdict_of = verdicts(world, group_size=group_size, critic_error=critic_error)
        rows = [(name, *_cells(verdict)) for name, verdict in verdict_of.items()]
        lines += [Table(head, rows, right=range(1, 5)).markdown(), ""]
    return [*lines, *_published_bias()]


def _cells(verdict: Verdict) -> Iterator[str]:
    yield f"{verdict.scale:.2f}"
    # Rounding errors of float64 sums are far below this limit, and any real bias is far above it.
    yield "0" if verdict.error < 1e-9 else f"{verdict.error:.2f}"
    yield f"{verdict.angle:.0f}°"
    yield f"{verdict.noise:.1f}"


def _published_bias() -> list[str]:
    """Lines of Markdown about the published bias: mean estimates of the gradient of `go` in the
    world “stop or go”, by estimator and group size. The exact gradient is 0.075."""
    episodes = enumerate_episodes(STOP_OR_GO)
    sizes = (2, 4, 8)
    rows = []
    for name in SPECIMENS:
        # Parameters are ordered by state, then by action, so index 1 is `go` in `start`.
        biased = [
            judge(episodes, groups_of(episodes, size), ESTIMATORS[name]).mean[1] for size in sizes
        ]
        rows.append((name, *(f"{float(value):.6g}" for value in biased)))
    head = ("estimator", *(f"G = {size}" for size in sizes))
    return [
        "### The published bias",
        "",
        "Mean estimate of the gradient of the action `go` in the world “stop or go”. The exact gradient is 0.075.",
        "",
        Table(head, rows, right=range(1, 4)).markdown(),
    ]

"""Format metrics for people: shares in percent with one decimal, a dash for a missing value.
Imports no slow module."""

from collections.abc import Mapping


def percent(value: float | None) -> str:
    """Format a share in percent: 0.1234 becomes `12.3`, and None a dash."""
    return "–" if value is None else f"{100 * value:.1f}"


def on_puzzles(count: float, seen: float | None) -> str:
    """Describe the puzzles of a metric: ` on unseen puzzles`, or how many of the `count` puzzles
    were seen in training. Returns "" if `seen` is None, which means not counted."""
    if seen is None:
        return ""
    return (
        f" on {count:g} puzzles, of which {seen:.3g} were seen in training"
        if seen
        else " on unseen puzzles"
    )


def interval_text(interval: Mapping[str, float] | None, *, sign: str = "") -> str:
    """Format an interval from `interval_json` in percent: `12.3 [10.0, 15.1]`, or the mean alone if
    it has no ends. With `sign="+"`, positive numbers get a sign."""
    if not interval:
        return "–"
    mean, *ends = (
        f"{100 * interval[part]:{sign}.1f}" for part in ("mean", "low", "high") if part in interval
    )
    return f"{mean} [{', '.join(ends)}]" if ends else mean

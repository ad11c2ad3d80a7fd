"""Figures as people read them: shares in percent with one digit, a dash where there is none.
Imports nothing heavy."""

from collections.abc import Mapping


def percent(value: float | None) -> str:
    """A share: 0.1234 is `12.3`."""
    return "–" if value is None else f"{100 * value:.1f}"


def on_puzzles(count: float, seen: float | None) -> str:
    """Describe the puzzles behind a number: ` on unseen puzzles`, or how many of them were trained
    on; "" if that was not counted."""
    if seen is None:
        return ""
    return (
        f" on {count:g} puzzles, of which {seen:.3g} were seen in training"
        if seen
        else " on unseen puzzles"
    )


def interval_text(interval: Mapping[str, float] | None, *, sign: str = "") -> str:
    """A mean with the ends of its interval, as `interval_json` has them: `12.3 [10.0, 15.1]`, or
    the mean alone if it has none; `sign` "+" shows it."""
    if not interval:
        return "–"
    mean, *ends = (
        f"{100 * interval[part]:{sign}.1f}" for part in ("mean", "low", "high") if part in interval
    )
    return f"{mean} [{', '.join(ends)}]" if ends else mean

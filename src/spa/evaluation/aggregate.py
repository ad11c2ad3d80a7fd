"""Aggregate attempts: success with intervals over puzzles and by difficulty, and statistics of the
policy's behaviour."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isnan
from typing import Any

import numpy as np

from spa.evaluation.outcomes import Group
from spa.evaluation.passk import pass_at_k
from spa.evaluation.statistics import Interval, rate_interval
from spa.formats.base import search_metrics

KS = (1, 2, 4, 8, 16, 32, 64)
DIGITS = 6


def play_report(
    groups: Sequence[Group],
    *,
    ks: Iterable[int],
    seed: int = 0,
    resamples: int = 10_000,
    world_model: bool = False,
) -> dict[str, Any]:
    """Compute all metrics of one environment tag, as JSON-ready values.

    Pass@k is the unbiased estimator averaged over puzzles, with a percentile bootstrap interval
    over puzzles. A puzzle with fewer than k finished attempts does not count for that k. A k
    without any puzzle is left out. Shares are pooled over all attempts: `*_per_action` are shares
    of the executed actions, `format_rate` and `cut_off` shares of the turns. `by_difficulty` has
    Pass@1 per difficulty.
    """
    attempts = [attempt for group in groups for attempt in group.attempts if attempt.played]
    turns = sum(attempt.turns for attempt in attempts)
    actions = sum(attempt.actions for attempt in attempts)
    report: dict[str, Any] = {
        "puzzles": len(groups),
        "episodes": len(attempts),
        "errors": sum(len(group.attempts) for group in groups) - len(attempts),
    }
    if not attempts:
        return report
    report |= pass_intervals(groups, ks, seed=seed, resamples=resamples)
    report["pass@any"] = rounded(
        np.mean([c > 0 for n, c in (group.counts for group in groups) if n])
    )
    report["by_difficulty"] = by_difficulty(groups, seed=seed, resamples=resamples)
    report |= {
        "format_rate": _ratio(sum(a.well_formed for a in attempts), turns),
        "cut_off": _ratio(sum(a.cut_off for a in attempts), turns),
        "invalid_per_action": _ratio(sum(a.invalid for a in attempts), actions),
        "ineffective_per_action": _ratio(sum(a.ineffective for a in attempts), actions),
        "actions_per_episode": _ratio(actions, len(attempts)),
        "turns_per_episode": _ratio(turns, len(attempts)),
        "score": rounded(np.mean([a.score for a in attempts])),
        "reward": rounded(np.mean([a.reward for a in attempts])),
        "stops": dict(sorted(Counter(a.stop for a in attempts).items())),
    }
    tokens = [a.tokens for a in attempts if a.tokens is not None]
    if tokens:
        report["tokens_per_episode"] = rounded(np.mean(tokens))
        report["tokens_per_turn"] = _ratio(sum(tokens), turns)
    if world_model:
        report["observation_exact"] = _ratio(sum(a.observed for a in attempts), turns)
        report["prediction_exact"] = _ratio(sum(a.predicted for a in attempts), turns)
        unchanged = [a.unchanged for a in attempts if a.unchanged is not None]
        if len(unchanged) == len(attempts):
            report["copy_exact"] = _ratio(sum(unchanged), turns)
    searches = [each for attempt in attempts for each in attempt.searches]
    return report | {name: rounded(value) for name, value in search_metrics(searches).items()}


def pass_intervals(
    groups: Sequence[Group], ks: Iterable[int], *, seed: int, resamples: int
) -> dict[str, Any]:
    """Return `pass@k` -> {mean, low, high, n}, for every k for which some puzzle has enough
    attempts. `n` is the number of puzzles."""
    # `reshape` gives the shape [0, 2] if there are no groups, so that the columns below exist.
    counts = np.array([group.counts for group in groups], dtype=np.int64).reshape(-1, 2)
    out = {}
    for k in ks:
        # The unbiased estimator is defined only for n >= k.
        enough = counts[counts[:, 0] >= k]
        if len(enough):
            values = pass_at_k(enough[:, 0], enough[:, 1], k)
            out[f"pass@{k}"] = interval_json(
                rate_interval([values], seed=seed, resamples=resamples)
            )
    return out


def by_difficulty(groups: Sequence[Group], *, seed: int, resamples: int) -> list[dict[str, Any]]:
    """Compute Pass@1 for each difficulty, in ascending order of difficulty. Puzzles of unknown
    difficulty are left out."""
    out = []
    for value in sorted({group.difficulty for group in groups if group.difficulty is not None}):
        of_value = [group for group in groups if group.difficulty == value]
        intervals = pass_intervals(of_value, (1,), seed=seed, resamples=resamples)
        if intervals:
            out.append({"difficulty": value, **intervals})
    return out


def not_computed(ks: Iterable[int], samples: int) -> dict[str, str]:
    """Return an explanation for every Pass@k that needs more than `samples` samples per puzzle."""
    return {
        f"pass@{k}": f"Pass@{k} needs {k} samples per puzzle, but the validation has {samples}. "
        "Raise es_manager.val.group_size."
        for k in ks
        if k > samples
    }


def interval_json(interval: Interval) -> dict[str, float | int]:
    """Convert an interval to a JSON-ready dict with `mean`, `low`, `high` and `n`. `low` and `high`
    are left out if they are NaN."""
    # JSON has no NaN, so an interval that could not be computed is written without ends.
    ends = {"low": rounded(interval.low), "high": rounded(interval.high)}
    known = {} if isnan(interval.low) else ends
    return {"mean": rounded(interval.mean), **known, "n": interval.n}


def _ratio(part: float, whole: float) -> float | None:
    return rounded(part / whole) if whole else None


def rounded(value: Any) -> float:
    """Round a figure to the `DIGITS` decimals of result files."""
    return round(float(value), DIGITS)

"""Intervals for success rates and for differences between methods. The same seed gives the same interval."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spa.seeds import stream

Floats = NDArray[np.float64]
Strata = Sequence[ArrayLike] | NDArray[np.floating]
"""One array of numbers per training seed (or environment); the arrays may differ in length."""

MANY_SEEDS = 3  # from here on seeds are resampled, too
_CHUNK = 1_000_000  # draws held in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its confidence interval."""

    mean: float
    low: float
    high: float
    n: int  # independent units: puzzles (summed over seeds), runs or trials
    level: float = 0.95

    @property
    def excludes_zero(self) -> bool:
        """True if the interval lies wholly on one side of 0."""
        return self.low > 0 or self.high < 0


def bootstrap_mean(
    values: Strata,
    *,
    seed: int,
    level: float = 0.95,
    resamples: int = 10_000,
    resample_seeds: bool = False,
) -> Interval:
    """Mean over training seeds of the mean over puzzles, with a percentile bootstrap interval.

    Puzzles are resampled inside each training seed, so that the interval speaks of other puzzles for these trained
    models. With `resample_seeds` training seeds are drawn first: the interval then speaks of other training seeds
    too, which needs more than a handful of them to be reliable.

    Args:
        values: one array `[P_s]` per training seed, one number per puzzle (for example its Pass@1).
        seed: of the bootstrap.
        level: confidence level.
        resamples: bootstrap samples.
        resample_seeds: see above.

    Raises:
        ValueError: there is no seed, or a seed has no puzzle.
    """
    strata = [np.asarray(part, dtype=np.float64).ravel() for part in values]
    if not strata or any(len(part) == 0 for part in strata):
        raise ValueError("bootstrap_mean: needs at least one training seed, and one puzzle for each")
    rng = stream(seed, "bootstrap")
    total = np.zeros(resamples)
    for own in range(len(strata)):
        if resample_seeds:
            means = np.stack([_resample(part, np.mean, resamples, rng) for part in strata])
            total += means[rng.integers(len(strata), size=resamples), np.arange(resamples)]
        else:
            total += _resample(strata[own], np.mean, resamples, rng)
    mean = float(np.mean([part.mean() for part in strata]))
    return _percentiles(mean, total / len(strata), sum(map(len, strata)), level)


def paired_difference(
    first: Strata,
    second: Strata,
    *,
    seed: int,
    level: float = 0.95,
    resamples: int = 10_000,
    resample_seeds: bool = False,
) -> Interval:
    """Mean difference first - second, paired by puzzle inside each training seed; otherwise as `bootstrap_mean`.

    Raises:
        ValueError: the two do not have the same seeds and puzzles.
    """
    pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in zip(first, second, strict=True)]
    if any(a.shape != b.shape for a, b in pairs):
        raise ValueError("paired_difference: both methods need the same puzzles, in the same order, for every seed")
    differences = [a - b for a, b in pairs]
    return bootstrap_mean(differences, seed=seed, level=level, resamples=resamples, resample_seeds=resample_seeds)


def paired_by_puzzle(
    pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]], *, seed: int, resamples: int = 10_000
) -> Interval | None:
    """Mean of the first minus the second over the puzzles that both have, paired inside each training seed, with a
    bootstrap interval over puzzles, and over seeds if there are `MANY_SEEDS`; None if there is nothing to pair.

    Args:
        pairs: per training seed, puzzle -> number of the first and of the second method.
        seed: of the bootstrap.
        resamples: bootstrap samples.
    """
    shared = [sorted(first.keys() & second.keys()) for first, second in pairs]
    if not pairs or not all(shared):
        return None
    firsts, seconds = (
        [[pair[side][name] for name in names] for pair, names in zip(pairs, shared, strict=True)] for side in (0, 1)
    )
    return paired_difference(firsts, seconds, seed=seed, resamples=resamples, resample_seeds=len(pairs) >= MANY_SEEDS)


def rate_interval(values: Strata, *, seed: int, level: float = 0.95, resamples: int = 10_000) -> Interval:
    """`bootstrap_mean` for rates within 0..1 (Pass@k per puzzle), over seeds too if there are `MANY_SEEDS`.

    When every puzzle has rate 0, or every one 1, resampling shows no spread at all; the Wilson interval over puzzles
    takes its place.
    """
    many = len(values) >= MANY_SEEDS
    interval = bootstrap_mean(values, seed=seed, level=level, resamples=resamples, resample_seeds=many)
    if interval.mean in (0.0, 1.0):
        return wilson_interval(round(interval.mean * interval.n), interval.n, level=level)
    return interval


def _resample(values: Floats, statistic: Callable[..., Floats], resamples: int, rng: np.random.Generator) -> Floats:
    """`statistic(draws, axis=1)` of samples of `values` `[P]` with replacement -> `[resamples]`."""
    rows = max(1, _CHUNK // len(values))
    parts = [
        statistic(values[rng.integers(len(values), size=(min(rows, resamples - start), len(values)))], axis=1)
        for start in range(0, resamples, rows)
    ]
    return np.concatenate(parts)


def _percentiles(mean: float, samples: Floats, n: int, level: float) -> Interval:
    tail = (1 - level) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return Interval(mean=mean, low=float(low), high=float(high), n=n, level=level)


def iqm(values: ArrayLike) -> float:
    """Interquartile mean: the mean of the middle half of all values (arXiv 2108.13264).

    A value that straddles a quartile counts by the part of it inside, so that few values work too: three are weighted
    1 : 4 : 1.

    Raises:
        ValueError: there are no values.
    """
    flat = np.asarray(values, dtype=np.float64).reshape(1, -1)
    if flat.size == 0:
        raise ValueError("iqm: needs at least one value")
    return float(_iqm_rows(flat)[0])


def _iqm_rows(values: Floats) -> Floats:
    """IQM of each row: `[R, n]` -> `[R]`."""
    n = values.shape[1]
    edges = np.arange(n + 1) / n
    inside = np.clip(edges[1:], 0.25, 0.75) - np.clip(edges[:-1], 0.25, 0.75)
    return np.sort(values, axis=1) @ (inside / inside.sum())


def iqm_interval(scores: Strata, *, seed: int, level: float = 0.95, resamples: int = 10_000) -> Interval:
    """IQM over environments and runs, bootstrapped over runs inside each environment (arXiv 2108.13264).

    Args:
        scores: one array `[runs]` per environment, scores of comparable scale (percent of the card's optimum, Pass@1).
        seed: of the bootstrap.
        level: confidence level.
        resamples: bootstrap samples.

    Raises:
        ValueError: there is no environment, or one without a run.
    """
    strata = [np.asarray(part, dtype=np.float64).ravel() for part in scores]
    if not strata or any(len(part) == 0 for part in strata):
        raise ValueError("iqm_interval: needs at least one environment, and one run for each")
    rng = stream(seed, "bootstrap-iqm")
    draws = np.concatenate([part[rng.integers(len(part), size=(resamples, len(part)))] for part in strata], axis=1)
    return _percentiles(iqm(np.concatenate(strata)), _iqm_rows(draws), sum(map(len, strata)), level)


def probability_of_improvement(
    first: Strata, second: Strata, *, seed: int, level: float = 0.95, resamples: int = 2_000
) -> Interval:
    """Probability that a run of the first method beats one of the second in an environment drawn at random, ties
    counting half: the Mann-Whitney statistic over its largest value, averaged over environments, bootstrapped over runs
    inside each (arXiv 2108.13264).

    Args:
        first: one array `[runs]` per environment.
        second: the same environments, in the same order; other numbers of runs are fine.
        seed: of the bootstrap.
        level: confidence level.
        resamples: bootstrap samples.

    Raises:
        ValueError: there is no environment, or one without a run of both.
    """
    pairs = [(np.asarray(a, float).ravel(), np.asarray(b, float).ravel()) for a, b in zip(first, second, strict=True)]
    if not pairs or any(len(a) == 0 or len(b) == 0 for a, b in pairs):
        raise ValueError("probability_of_improvement: needs at least one environment, and one run of both for each")
    rng = stream(seed, "bootstrap-improvement")
    mean, samples = 0.0, np.zeros(resamples)
    for a, b in pairs:
        wins = (a[:, None] > b) + 0.5 * (a[:, None] == b)  # [runs of a, runs of b]
        mean += float(wins.mean()) / len(pairs)
        rows = rng.integers(len(a), size=(resamples, len(a), 1))
        columns = rng.integers(len(b), size=(resamples, 1, len(b)))
        samples += wins[rows, columns].mean(axis=(1, 2)) / len(pairs)
    return _percentiles(mean, samples, sum(len(a) for a, _ in pairs), level)


def wilson_interval(successes: int, n: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval for one proportion of independent trials (Wilson 1927).

    Raises:
        ValueError: n < 1 or successes not within 0..n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"wilson_interval: needs 0 <= successes <= n and n >= 1, got {successes} of {n}")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    rate = successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z * (rate * (1 - rate) / n + z * z / (4 * n * n)) ** 0.5 / (1 + z * z / n)
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Interval(mean=rate, low=low, high=high, n=n, level=level)


def sentence(first: str, second: str, difference: Interval, *, scale: float = 100.0, unit: str = "points") -> str:
    """The comparison first - second in plain words.

    Args:
        first: name of a method.
        second: name of the other.
        difference: of first - second.
        scale: from the interval's numbers to `unit`.
        unit: what is printed behind the number.

    Example: "spa is better than vanilla by 18 points (95 % interval 11 to 25)."
    """
    mean, low, high = (scale * x for x in (difference.mean, difference.low, difference.high))
    level = f"{100 * difference.level:g} % interval"
    if not difference.excludes_zero:
        return f"No difference found between {first} and {second}: {_numbers(mean, low, high, unit, level)}."
    if low > 0:
        return f"{first} is better than {second} by {_numbers(mean, low, high, unit, level)}."
    return f"{second} is better than {first} by {_numbers(-mean, -high, -low, unit, level)}."


def _numbers(mean: float, low: float, high: float, unit: str, level: str) -> str:
    """Whole numbers where they say enough: no number other than 0 may print as 0."""
    shown = [x for x in (mean, low, high) if x != 0]
    digits = next((d for d in range(4) if all(round(abs(x), d) > 0 for x in shown)), 4)
    a, b, c = (f"{x:.{digits}f}" for x in (mean, low, high))
    return f"{a} {unit} ({level} {b} to {c})"

"""Confidence intervals for success rates and for differences between methods. The same seed gives
the same interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spa.seeds import stream

Floats = NDArray[np.float64]
Strata = Sequence[ArrayLike] | NDArray[np.floating]
"""One array of numbers per training seed (or environment); the arrays may differ in length."""

# With at least this many training seeds, an interval is computed over seeds, unless their means are
# all equal. With fewer seeds, it is computed over puzzles, and ignores the variance between
# training runs.
MANY_SEEDS = 3
_CHUNK = 1_000_000  # largest number of values in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its confidence interval."""

    mean: float
    low: float
    high: float
    n: int  # independent units: puzzles (summed over seeds), runs or trials
    level: float = 0.95
    over: Literal["puzzles", "seeds"] = "puzzles"  # the units over which the interval is computed

    @property
    def excludes_zero(self) -> bool:
        """True if the interval lies wholly on one side of 0."""
        return self.low > 0 or self.high < 0


def bootstrap_mean(
    values: Strata, *, seed: int, level: float = 0.95, resamples: int = 10_000
) -> Interval:
    """Average over puzzles, then over training seeds, with a percentile bootstrap interval over
    puzzles.

    Puzzles are resampled within each training seed. So the interval covers other puzzles for the
    same trained models, but not other training seeds (see `seeds_interval`).

    Args:
        values: one array `[P_s]` per training seed, one number per puzzle (for example its Pass@1).
        seed: seed of the bootstrap.
        level: confidence level.
        resamples: number of bootstrap samples.

    Raises:
        ValueError: there is no seed, or a seed has no puzzle.
    """
    strata = [np.asarray(part, dtype=np.float64).ravel() for part in values]
    if not strata or any(len(part) == 0 for part in strata):
        raise ValueError(
            "bootstrap_mean: give at least one training seed, and at least one puzzle per seed"
        )
    rng = stream(seed, "bootstrap")
    # Each seed is resampled on its own, and the resampled means are averaged. So every seed has the
    # same weight, regardless of its number of puzzles, as in the mean itself.
    total = np.zeros(resamples)
    for part in strata:
        total += _resampled_means(part, resamples, rng)
    mean = float(np.mean([part.mean() for part in strata]))
    return _percentiles(mean, total / len(strata), sum(map(len, strata)), level)


def seeds_interval(values: Strata, *, level: float = 0.95) -> Interval:
    """Average over puzzles, then over training seeds, with Student's t interval over the seeds'
    means.

    The interval covers other training seeds, and also other puzzles if each seed has its own
    puzzles.

    Args:
        values: one array `[P_s]` per training seed, one number per puzzle.
        level: confidence level.

    Raises:
        ValueError: there are fewer than two seeds, or a seed has no puzzle.
    """
    strata = [np.asarray(part, dtype=np.float64).ravel() for part in values]
    if len(strata) < 2 or any(len(part) == 0 for part in strata):
        raise ValueError(
            "seeds_interval: give at least two training seeds, and at least one puzzle per seed"
        )
    # Only the mean of each seed is used. With S seeds there are S independent observations,
    # regardless of the number of puzzles.
    means = np.asarray([part.mean() for part in strata])
    mean = float(means.mean())
    return _over_seeds(mean, _half_width(means, level), strata, level)


def _over_seeds(mean: float, half: float, strata: Sequence[Floats], level: float) -> Interval:
    """The interval over seeds with this half width."""
    n = sum(map(len, strata))
    return Interval(mean=mean, low=mean - half, high=mean + half, n=n, level=level, over="seeds")


def _half_width(means: Floats, level: float) -> float:
    """Half of Student's t interval for the mean of independent `means` `[S]`."""
    # ddof=1: the sample variance, which the t distribution assumes.
    return t_quantile(level, len(means) - 1) * float(means.std(ddof=1)) / len(means) ** 0.5


def t_quantile(level: float, df: int) -> float:
    """Return the t with P(|T| <= t) = `level` for Student's T with `df` degrees of freedom.
    Computed by bisection of the closed form (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    # The substitution t = sqrt(df) tan(angle) maps t >= 0 to angles in [0, pi/2). P grows with the
    # angle, so halving the bracket 100 times reaches the limit of float64. This avoids a dependency
    # on SciPy.
    low = 0.0
    high = math.pi / 2
    for _ in range(100):
        angle = (low + high) / 2
        low, high = (angle, high) if _t_within(angle, df) < level else (low, angle)
    return math.sqrt(df) * math.tan(low)


def _t_within(angle: float, df: int) -> float:
    """P(|T| <= sqrt(df) tan(angle)) for Student's T."""
    sine = math.sin(angle)
    cosine = math.cos(angle)
    # A finite series in cos(angle): odd powers for odd df, even powers for even df. For df = 1
    # (Cauchy) the sum is empty and only the angle is left.
    odd = df % 2 == 1
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(2 + odd, df + 1, 2):
        total += term
        term *= (power - 1) / power * cosine**2
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def paired_difference(
    first: Strata, second: Strata, *, seed: int, level: float = 0.95, resamples: int = 10_000
) -> Interval:
    """Compute the mean difference first - second, paired by puzzle within each training seed. The
    interval is over seeds or puzzles, as in `_interval`.

    Raises:
        ValueError: the two do not have the same seeds and puzzles.
    """
    pairs = [
        (np.asarray(a, float), np.asarray(b, float)) for a, b in zip(first, second, strict=True)
    ]
    if any(a.shape != b.shape for a, b in pairs):
        raise ValueError(
            "paired_difference: give results of both methods on the same puzzles, in the same order, for every seed"
        )
    # Pairing removes the difficulty of a puzzle, which both methods share, from the variance.
    differences = [a - b for a, b in pairs]
    interval = _interval(differences, seed=seed, level=level, resamples=resamples)
    wider = _with_width(interval, level)
    return replace(wider, low=max(-1.0, wider.low), high=min(1.0, wider.high))


def _with_width(interval: Interval, level: float) -> Interval:
    """Widen an interval of zero width, which occurs if all puzzles have equal values. The new
    half-width is the upper end of the Wilson interval for 0 successes in `n` trials."""
    if interval.high - interval.low > 1e-9:
        return interval
    spread = wilson_interval(0, interval.n, level=level).high
    return replace(interval, low=interval.mean - spread, high=interval.mean + spread)


def _interval(values: Strata, *, seed: int, level: float, resamples: int) -> Interval:
    """Return `seeds_interval` for `MANY_SEEDS` seeds or more, otherwise `bootstrap_mean`. If all
    seeds have equal means, return `bootstrap_mean` as well: with few puzzles ties are likely, and
    an interval of zero width would claim certainty."""
    if len(values) >= MANY_SEEDS:
        interval = seeds_interval(values, level=level)
        # Not `== 0`, because rounding may make equal means differ.
        if interval.high - interval.low > 1e-9:
            return interval
    return bootstrap_mean(values, seed=seed, level=level, resamples=resamples)


def paired_by_puzzle(
    pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]],
    *,
    seed: int,
    resamples: int = 10_000,
) -> Interval | None:
    """Return `paired_difference` over the puzzles that both methods have; None if there are no
    seeds, or if a seed has no such puzzle.

    Args:
        pairs: per training seed, a mapping from puzzle to value for the first and the second method.
        seed: seed of the bootstrap.
        resamples: number of bootstrap samples.
    """
    # Sorted, because a set's order changes between processes and the bootstrap depends on the
    # order.
    shared = [sorted(first.keys() & second.keys()) for first, second in pairs]
    if not pairs or not all(shared):
        return None
    firsts, seconds = (
        [[pair[side][name] for name in names] for pair, names in zip(pairs, shared, strict=True)]
        for side in (0, 1)
    )
    return paired_difference(firsts, seconds, seed=seed, resamples=resamples)


def rate_interval(
    values: Strata, *, seed: int, level: float = 0.95, resamples: int = 10_000
) -> Interval:
    """Compute the mean of rates, such as Pass@k per puzzle. The interval is over seeds or puzzles,
    as in `_interval`, and clipped to 0..1.

    If all rates are 0, or all are 1, they have no variance. The Wilson interval over puzzles is
    then returned instead.
    """
    interval = _interval(values, seed=seed, level=level, resamples=resamples)
    if interval.mean in (0.0, 1.0):
        return wilson_interval(round(interval.mean * interval.n), interval.n, level=level)
    interval = _with_width(interval, level)
    # Student's t interval may extend beyond 0 and 1, but a rate cannot.
    return replace(interval, low=max(0.0, interval.low), high=min(1.0, interval.high))


def _resampled_means(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """Sample `values` `[P]` with replacement, and return the mean of each sample as
    `[resamples]`."""
    # Samples are made in blocks: 10,000 resamples of 6,000 puzzles, indices and values of 8
    # bytes each, would need 1 GB at once.
    rows = max(1, _CHUNK // len(values))
    # [rows, P] indices per block -> [rows] means
    parts = [
        values[rng.integers(len(values), size=(min(rows, resamples - start), len(values)))].mean(
            axis=1
        )
        for start in range(0, resamples, rows)
    ]
    return np.concatenate(parts)


def _percentiles(mean: float, samples: Floats, n: int, level: float) -> Interval:
    tail = (1 - level) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return Interval(mean=mean, low=float(low), high=float(high), n=n, level=level)


def iqm(values: ArrayLike) -> float:
    """Interquartile mean: the mean of the middle half of all values (arXiv 2108.13264).

    A value that straddles a quartile is weighted by its share inside, so the result is also defined
    for few values: three are weighted 1 : 4 : 1.

    Raises:
        ValueError: there are no values.
    """
    flat = np.asarray(values, dtype=np.float64).reshape(1, -1)
    if flat.size == 0:
        raise ValueError("iqm: give at least one value")
    return float(_iqm_rows(flat)[0])


def _iqm_rows(values: Floats) -> Floats:
    """IQM of each row: `[R, n]` -> `[R]`."""
    n = values.shape[1]
    # Value i of n, sorted, covers the slice [i/n, (i+1)/n] of the distribution. `inside` is the
    # part of that slice between the quartiles.
    edges = np.arange(n + 1) / n
    inside = np.clip(edges[1:], 0.25, 0.75) - np.clip(edges[:-1], 0.25, 0.75)
    return np.sort(values, axis=1) @ (inside / inside.sum())


def iqm_interval(scores: Strata, *, level: float = 0.95) -> Interval:
    """IQM over environments and runs (arXiv 2108.13264), with Student's t interval over runs.

    The interval is computed from one IQM over environments per run. A bootstrap over three runs
    would have a coverage of only 0.8 at a nominal level of 0.95.

    Args:
        scores: one array `[runs]` per environment, scores of comparable scale (percent of the
            reference optimum, Pass@1). If their lengths differ, the interval's width is computed
            from the first n runs of each, n being the shortest length.
        level: confidence level.

    Returns:
        The interval; its ends are NaN if an environment has a single run, which shows no variance.

    Raises:
        ValueError: there is no environment, or an environment has no run.
    """
    strata = [np.asarray(part, dtype=np.float64).ravel() for part in scores]
    if not strata or any(len(part) == 0 for part in strata):
        raise ValueError(
            "iqm_interval: give at least one environment, and at least one run per environment"
        )
    # Runs are paired across environments by position, so the longer lists are cut to the shortest.
    # The mean below still uses every run.
    # Shape [runs, environments].
    runs = np.stack([part[: min(map(len, strata))] for part in strata], axis=1)
    mean = iqm(np.concatenate(strata))
    half = _half_width(_iqm_rows(runs), level) if len(runs) > 1 else math.nan
    return _over_seeds(mean, half, strata, level)


def probability_of_improvement(first: Strata, second: Strata) -> float:
    """Probability that a run of the first method beats a run of the second in an environment
    sampled at random. Ties count half. This is the Mann-Whitney statistic divided by its largest
    value, averaged over environments (arXiv 2108.13264).

    Args:
        first: one array `[runs]` per environment.
        second: the same environments, in the same order; the numbers of runs may differ.

    Raises:
        ValueError: there is no environment, or an environment lacks a run of either method.
    """
    pairs = [
        (np.asarray(a, float).ravel(), np.asarray(b, float).ravel())
        for a, b in zip(first, second, strict=True)
    ]
    if not pairs or any(len(a) == 0 or len(b) == 0 for a, b in pairs):
        raise ValueError(
            "probability_of_improvement: give at least one environment, and at least one run of each method per "
            "environment"
        )
    # [runs, 1] against [runs'] compares every run of the first with every run of the second.
    return float(np.mean([((a[:, None] > b) + 0.5 * (a[:, None] == b)).mean() for a, b in pairs]))


def wilson_interval(successes: int, n: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval for one proportion of independent trials (Wilson 1927).

    Raises:
        ValueError: n < 1 or successes not within 0..n.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(
            f"wilson_interval: needs 0 <= successes <= n and n >= 1, but successes is {successes} and n is {n}"
        )
    # Two-sided: 0.95 leaves 0.025 above, so z = 1.96.
    z = NormalDist().inv_cdf(0.5 + level / 2)
    rate = successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z * (rate * (1 - rate) / n + z * z / (4 * n * n)) ** 0.5 / (1 + z * z / n)
    # The exact result of the formula is 0 or 1 here. Rounding may leave a difference of 1e-17.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Interval(mean=rate, low=low, high=high, n=n, level=level)


def sentence(first: str, second: str, difference: Interval) -> str:
    """Describe the comparison of two methods in plain words.

    Args:
        first: name of a method.
        second: name of the other method.
        difference: interval of first - second, between -1 and 1; printed in points.

    Example: "spa is better than vanilla by 18 points (95 % interval 11 to 25)."
    """
    mean, low, high = (100 * x for x in (difference.mean, difference.low, difference.high))
    level = f"{100 * difference.level:g} % interval"
    if not difference.excludes_zero:
        return (
            f"No difference found between {first} and {second}: {_numbers(mean, low, high, level)}."
        )
    if low > 0:
        return f"{first} is better than {second} by {_numbers(mean, low, high, level)}."
    # The sentence names the better method first. This negates the difference and swaps the ends of
    # its interval.
    return f"{second} is better than {first} by {_numbers(-mean, -high, -low, level)}."


def decimals(*numbers: float) -> int:
    """Return the smallest number of decimals, at most 4, at which no nonzero number prints as 0."""
    shown = [x for x in numbers if x != 0]
    return next((d for d in range(4) if all(round(abs(x), d) > 0 for x in shown)), 4)


def _numbers(mean: float, low: float, high: float, level: str) -> str:
    digits = decimals(mean, low, high)
    a, b, c = (f"{x:.{digits}f}" for x in (mean, low, high))
    return f"{a} points ({level} {b} to {c})"

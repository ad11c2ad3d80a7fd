from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from spa.evaluation.statistics import (
    Interval,
    bootstrap_mean,
    iqm,
    iqm_interval,
    paired_difference,
    rate_interval,
    seeds_interval,
    sentence,
    t_quantile,
    wilson_interval,
)
from spa.seeds import stream


def samples(seed, *shape):
    return stream(seed, "test").random(shape)


def test_equal_seeds_give_equal_intervals():
    values = samples(1, 3, 40)
    assert bootstrap_mean(values, seed=5) == bootstrap_mean(values, seed=5)
    assert bootstrap_mean(values, seed=5) != bootstrap_mean(values, seed=6)


def test_interval_of_the_mean_is_near_the_normal_one():
    values = samples(2, 1, 200)
    interval = bootstrap_mean(values, seed=0)
    half = 1.96 * values.std() / 200**0.5
    assert interval.mean == pytest.approx(values.mean())
    assert interval.n == 200
    assert interval.low == pytest.approx(values.mean() - half, abs=half / 10)
    assert interval.high == pytest.approx(values.mean() + half, abs=half / 10)


def test_seeds_weigh_the_same_and_need_not_have_equal_puzzles():
    interval = bootstrap_mean([[1.0] * 3, [0.0] * 9], seed=0)
    assert (interval.mean, interval.low, interval.high, interval.n) == (0.5, 0.5, 0.5, 12)
    between = seeds_interval([[1.0] * 3, [0.0] * 9])
    assert (between.mean, between.n) == (0.5, 12)


def test_pairing_removes_what_puzzles_share():
    hard = samples(3, 3, 60)
    easier = hard + 0.01 + samples(4, 3, 60) / 1000
    paired = paired_difference(list(easier), list(hard), seed=0)
    assert paired.low == pytest.approx(0.01, abs=0.001)
    assert paired.high == pytest.approx(0.01, abs=0.001)
    assert paired.excludes_zero
    with pytest.raises(ValueError, match="same puzzles"):
        paired_difference([[1.0, 2.0]], [[1.0]], seed=0)
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([[1.0], [2.0]], [[1.0]], seed=0)


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [(0, 0, -0.194, 0.194), (1, 1, -0.194, 0.194), (1, 0, 0.806, 1)],
)
def test_puzzles_that_all_differ_alike_do_not_say_that_all_others_do(first, second, low, high):
    found = paired_difference([[first] * 16], [[second] * 16], seed=0)
    assert (found.mean, found.low, found.high) == pytest.approx(
        (first - second, low, high), abs=1e-3
    )


def test_paired_intervals_over_puzzles_cover_at_their_level():
    # Puzzles of different difficulty, 8 attempts each, 2 training seeds of 40 puzzles; the second method is 0.1 worse.
    rng, hits, trials = stream(7, "coverage"), 0, 300
    for trial in range(trials):
        rates = rng.uniform(0.2, 0.9, size=(2, 40))
        first, second = rng.binomial(8, rates) / 8, rng.binomial(8, rates - 0.1) / 8
        interval = paired_difference(list(first), list(second), seed=trial, resamples=400)
        hits += interval.low <= 0.1 <= interval.high
    assert 0.91 <= hits / trials <= 0.985  # nominal 0.95, 3 standard errors of the simulation


@pytest.mark.parametrize("spread", [0.06, 0.12])
def test_intervals_over_three_training_seeds_cover_at_their_level(spread):
    # Seeds differ by `spread` in what they gain over the other method; each has 64 puzzles of its own, 8 attempts.
    rng, hits, trials = stream(9, "coverage"), 0, 1000
    for _ in range(trials):
        rates = rng.uniform(0.3, 0.5, size=(3, 64))
        gains = np.clip(rng.normal(0.2, spread, size=(3, 1)), -0.3, 0.5)
        first, second = rng.binomial(8, rates + gains) / 8, rng.binomial(8, rates) / 8
        interval = paired_difference(list(first), list(second), seed=0)
        hits += interval.low <= 0.2 <= interval.high
    assert 0.93 <= hits / trials <= 0.97  # nominal 0.95, 3 standard errors of the simulation


def test_an_interval_over_three_seeds_by_hand():
    # Differences 33.5, 39.4, 33.0: mean 35.3, SD 3.56, t(0.975, 2) = 4.3027 -> 35.3 +- 8.85
    first, second = [[0.730], [0.816], [0.766]], [[0.395], [0.422], [0.436]]
    interval = paired_difference(first, second, seed=0)
    assert interval.mean == pytest.approx(0.353)
    assert (interval.low, interval.high) == (
        pytest.approx(0.26448, abs=1e-4),
        pytest.approx(0.44152, abs=1e-4),
    )
    with pytest.raises(ValueError, match="two training seeds"):
        seeds_interval([[1.0, 0.0]])


@pytest.mark.parametrize(
    ("level", "df", "quantile"),  # NIST/SEMATECH e-Handbook, 1.3.6.7.2
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 3, 3.182),
        (0.90, 7, 1.895),
        (0.99, 2, 9.925),
        (0.95, 30, 2.042),
    ],
)
def test_published_quantiles_of_t(level, df, quantile):
    assert t_quantile(level, df) == pytest.approx(quantile, abs=6e-4)


def test_wilson_intervals_cover_at_their_level():
    rng, hits, trials = stream(8, "coverage"), 0, 1000
    for successes in rng.binomial(50, 0.15, size=trials):
        interval = wilson_interval(int(successes), 50)
        hits += interval.low <= 0.15 <= interval.high
    assert 0.92 <= hits / trials <= 0.975


def test_wilson_published_values():
    # Newcombe 1998, Statistics in Medicine 17:857, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    for successes, n, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        interval = wilson_interval(successes, n)
        assert (interval.low, interval.high) == (
            pytest.approx(low, abs=5e-5),
            pytest.approx(high, abs=5e-5),
        )


def test_rates_without_spread_get_the_wilson_interval():
    zero = rate_interval([[0.0] * 10, [0.0] * 10], seed=0)
    assert (zero.low, zero.high) == (0.0, pytest.approx(0.1611, abs=5e-5))
    one = rate_interval([[1.0] * 20], seed=0)
    assert (one.low, one.high) == (pytest.approx(1 - 0.1611, abs=5e-5), 1.0)
    half = rate_interval([[0.5] * 20], seed=0)
    assert (half.low, half.high) == (
        pytest.approx(0.5 - 0.1611, abs=5e-5),
        pytest.approx(0.5 + 0.1611, abs=5e-5),
    )
    mixed = [[0.0, 0.5, 1.0] * 5]
    assert rate_interval(mixed, seed=3) == bootstrap_mean(mixed, seed=3)


def test_rates_of_three_training_seeds_have_an_interval_over_seeds_within_0_and_1():
    near = [[0.05, 0.0, 0.1] * 5, [0.2] * 15, [0.1, 0.0] * 5]
    over_seeds = seeds_interval(near)
    assert over_seeds.low < 0
    assert rate_interval(near, seed=3) == replace(over_seeds, low=0.0)
    assert rate_interval(near[:2], seed=3) == bootstrap_mean(near[:2], seed=3)


def test_iqm_by_hand():
    assert iqm([0, 1, 2, 100]) == 1.5  # the middle two
    assert iqm([5]) == 5
    assert iqm([0, 3, 12]) == pytest.approx((0 + 4 * 3 + 12) / 6)
    assert iqm(np.arange(8)) == 3.5
    assert iqm([1, 0, 100, 2, -50, 3, 1, 4]) == pytest.approx((1 + 1 + 2 + 3) / 4)


def test_iqm_interval_keeps_environments_apart():
    interval = iqm_interval([[0.2, 0.2, 0.2], [0.5, 0.5, 0.5], [0.9, 0.9, 0.9]])
    assert interval.low == pytest.approx(interval.mean) == interval.high
    assert interval.over == "seeds"
    spread = iqm_interval(samples(4, 4, 5))
    assert spread.low < spread.mean < spread.high
    assert spread.n == 20
    assert np.isnan(iqm_interval([[0.2, 0.4], [0.5]]).low)


def test_iqm_intervals_over_three_runs_cover_at_their_level():
    rng, hits, trials = stream(10, "coverage"), 0, 1000
    centres = np.array([[0.5], [0.28], [0.22], [0.37]])
    truth = iqm(rng.normal(centres, 0.03, size=(4, 20_000)))
    for _ in range(trials):
        interval = iqm_interval(rng.normal(centres, 0.03, size=(4, 3)))
        hits += interval.low <= truth <= interval.high
    assert 0.93 <= hits / trials <= 0.975


@pytest.mark.parametrize("function", [partial(bootstrap_mean, seed=0), iqm_interval])
def test_nothing_to_average_is_refused(function):
    for empty in ([], [[]], [[1.0], []]):
        with pytest.raises(ValueError, match="at least one"):
            function(empty)


def test_large_samples_are_drawn_in_pieces():
    values = samples(5, 1, 3000)
    interval = bootstrap_mean(values, seed=0, resamples=1000)
    assert interval.high - interval.low == pytest.approx(
        2 * 1.96 * values.std() / 3000**0.5, rel=0.15
    )


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        ((0.18, 0.11, 0.25), "spa is better than vanilla by 18 points (95 % interval 11 to 25)."),
        (
            (-0.18, -0.25, -0.11),
            "vanilla is better than spa by 18 points (95 % interval 11 to 25).",
        ),
        (
            (0.02, -0.05, 0.09),
            "No difference found between spa and vanilla: 2 points (95 % interval -5 to 9).",
        ),
        (
            (0.051, 0.004, 0.09),
            "spa is better than vanilla by 5.1 points (95 % interval 0.4 to 9.0).",
        ),
        (
            (0.0, 0.0, 0.0),
            "No difference found between spa and vanilla: 0 points (95 % interval 0 to 0).",
        ),
    ],
)
def test_sentences(difference, text):
    mean, low, high = difference
    assert sentence("spa", "vanilla", Interval(mean=mean, low=low, high=high, n=30)) == text


def test_three_seeds_that_agree_to_the_digit_are_not_certain():
    tied = [[0.25, 0.5, 0.75], [0.5, 0.25, 0.75], [0.75, 0.5, 0.25]]
    assert rate_interval(tied, seed=0) == bootstrap_mean(tied, seed=0)
    assert rate_interval(tied, seed=0).low < 0.5 < rate_interval(tied, seed=0).high


def test_differences_over_seeds_stay_between_minus_one_and_one():
    found = paired_difference([[1.0], [1.0], [1.0]], [[0.0], [0.0], [1.0]], seed=0)
    assert found.mean == pytest.approx(2 / 3)
    assert -1 < found.low < 0 and found.high == 1.0

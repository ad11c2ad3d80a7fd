import pytest

from spa.algo.health import VarianceGuard, empty_batch_guard, low_success_guard


def fold(guard, observations):
    for observation in observations:
        guard = guard.observe(observation)
    return guard


@pytest.mark.parametrize("make", [empty_batch_guard, low_success_guard])
def test_only_an_unbroken_streak_trips(make):
    assert fold(make(), [True] * 4).reason is None
    assert fold(make(), [True] * 4 + [False] + [True] * 4).reason is None
    assert "In 5 consecutive checks" in fold(make(), [False] + [True] * 5).reason
    assert fold(make(limit=0), [True] * 50).reason is None


def test_collapsed_variance_trips_after_the_window_and_the_patience():
    start = fold(VarianceGuard(), [1.0] * 10)
    assert start.baseline == 1.0
    assert fold(start, [0.05] * 9).reason is None
    assert fold(start, [0.05] * 9 + [0.5] + [0.05] * 9).reason is None
    assert "10 updates" in str(fold(start, [0.05] * 10).reason)
    assert fold(start, [0.1] * 50).reason is None


def test_low_variance_inside_the_window_is_the_baseline():
    assert fold(VarianceGuard(), [0.0] * 100).reason is None
    assert fold(VarianceGuard(window=2), [1.0, 3.0, 100.0]).baseline == 2.0
    assert fold(VarianceGuard(patience=0), [1.0] * 10 + [0.0] * 50).reason is None

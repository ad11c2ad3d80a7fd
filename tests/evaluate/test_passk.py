from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spa.evaluation.passk import pass_at_k, pass_metrics, per_puzzle


def brute_force(outcomes, k):
    samples = list(combinations(outcomes, k))
    return sum(any(sample) for sample in samples) / len(samples)


@pytest.mark.parametrize("n", range(1, 8))
def test_equals_brute_force(n):
    for c in range(n + 1):
        for k in range(1, n + 1):
            wanted = brute_force([True] * c + [False] * (n - c), k)
            assert float(pass_at_k(n, c, k)) == pytest.approx(wanted, abs=1e-12)


def test_known_values_and_shapes():
    # 1 - C(6, 4) / C(8, 4) = 1 - 15 / 70
    assert pass_at_k([8, 8, 8], [2, 0, 8], 4) == pytest.approx([55 / 70, 0, 1])
    assert pass_at_k(8, np.array([[0], [3]]), 8).tolist() == [[0.0], [1.0]]
    assert pass_at_k(1000, 500, 64) == pytest.approx(1.0)


@given(
    st.lists(st.lists(st.booleans(), min_size=8, max_size=8), min_size=1, max_size=6), st.randoms()
)
def test_metrics_at_k_equal_n_are_group_any_and_ignore_order(groups, random):
    episodes = [(won, puzzle) for puzzle, group in enumerate(groups) for won in group]
    random.shuffle(episodes)
    won, puzzles = zip(*episodes, strict=True)
    metrics = pass_metrics(won, puzzles, [1, 2, 4, 8])
    assert metrics["pass@8"] == pytest.approx(np.mean([any(group) for group in groups]))
    assert metrics["pass@any"] == pytest.approx(metrics["pass@8"])
    assert metrics["pass@1"] == pytest.approx(np.mean(groups))
    assert (
        metrics["pass@1"]
        <= metrics["pass@2"] + 1e-12
        <= metrics["pass@4"] + 2e-12
        <= metrics["pass@8"] + 3e-12
    )


def test_counts_and_puzzles_with_fewer_attempts():
    won, puzzles = [1, 0, 0, 1, 1], ["b", "a", "b", "b", "c"]
    ids, n, c = per_puzzle(won, puzzles)
    assert (ids.tolist(), n.tolist(), c.tolist()) == (["a", "b", "c"], [1, 3, 1], [0, 2, 1])
    metrics = pass_metrics(won, puzzles, [1, 2, 8])
    assert metrics == pytest.approx(
        {"pass@1": (0 + 2 / 3 + 1) / 3, "pass@2": 1.0, "pass@any": 2 / 3}
    )
    assert pass_metrics([], [], [1]) == {}


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ValueError, match="pass_at_k"):
        pass_at_k([8, n], [0, c], k)

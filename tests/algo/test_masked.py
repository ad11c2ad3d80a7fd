import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.algo.masked import explained_variance, masked_mean, masked_sum, whiten

MASK = torch.tensor([[True, True, False], [True, False, False]])
VALUES = torch.tensor([[1.0, 2.0, float("nan")], [6.0, float("inf"), 9.0]])


def test_sum_and_mean_read_only_the_mask():
    assert masked_sum(VALUES, MASK) == 9
    assert masked_mean(VALUES, MASK) == 3
    assert masked_mean(VALUES, torch.zeros_like(MASK)) == 0


def test_whiten_by_hand():
    # 1, 2, 6: mean 3, unbiased variance (4 + 1 + 9) / 2 = 7
    expected = torch.tensor([[-2.0, -1.0, 0.0], [3.0, 0.0, 0.0]]) / 7**0.5
    torch.testing.assert_close(whiten(VALUES, MASK), expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 40), st.floats(-1e3, 1e3))
def test_whitened_values_have_mean_zero_and_variance_one(seed, count, shift):
    values = torch.randn(1, count, generator=torch.Generator().manual_seed(seed)) + shift
    out = whiten(values, torch.ones_like(values, dtype=torch.bool)).double()
    assert abs(float(out.mean())) < 1e-4
    assert abs(float(out.var()) - 1) < 1e-3


def test_whiten_of_equal_single_or_no_values_is_zero():
    for value in (0.1, -7.3, 1234.567):
        values = torch.full((4, 25), value)
        assert whiten(values, torch.ones(4, 25, dtype=torch.bool)).abs().max() < 1e-6
    one = torch.tensor([[True, False, False], [False] * 3])
    assert not whiten(VALUES, one).any()
    assert not whiten(VALUES, torch.zeros_like(MASK)).any()


def test_explained_variance():
    returns = torch.tensor([[1.0, 3.0, 99.0]])
    mask = torch.tensor([[True, True, False]])
    assert explained_variance(returns, returns, mask) == 1
    assert explained_variance(torch.full_like(returns, 2.0), returns, mask) == 0
    assert explained_variance(torch.tensor([[3.0, 1.0, 0.0]]), returns, mask) == -3
    assert explained_variance(returns, torch.ones_like(returns), mask) == 0
    assert explained_variance(returns, returns, torch.zeros_like(mask)) == 0

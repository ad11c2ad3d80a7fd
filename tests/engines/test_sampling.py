"""Drawing tokens: what each setting allows, how often it is drawn, and which log-prob is returned."""

import pytest
import torch

from spa.engines.sampling import sample_tokens
from spa.types import SamplingParams

LOGITS = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))
GRID = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000


def shares(**settings) -> list[float]:
    """How often each of the four tokens is drawn on an even grid of draws."""
    ids, _ = sample_tokens(LOGITS.repeat(1000, 1), GRID, SamplingParams(**settings))
    return [round(float((ids == token).double().mean()), 3) for token in range(4)]


def test_tokens_are_drawn_as_often_as_their_probabilities_say():
    assert shares() == [0.4, 0.3, 0.2, 0.1]


def test_temperature_sharpens_and_flattens():
    # p^2 / sum p^2 = 16, 9, 4, 1 of 30; p^(1/2) by hand: 0.6325, 0.5477, 0.4472, 0.3162 of 1.9436
    assert shares(temperature=0.5) == [0.533, 0.3, 0.134, 0.033]
    assert shares(temperature=2.0) == pytest.approx([0.325, 0.282, 0.230, 0.163], abs=0.002)


def test_greedy_takes_the_largest_whatever_is_drawn():
    assert shares(temperature=0.0) == [1, 0, 0, 0]


def test_top_k_keeps_the_k_largest():
    assert shares(top_k=1) == [1, 0, 0, 0]
    assert shares(top_k=2) == [0.571, 0.429, 0, 0]
    assert shares(top_k=4) == shares(top_k=-1) == shares(top_k=100)


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.39, [1, 0, 0, 0]),
        (0.41, [0.571, 0.429, 0, 0]),
        (0.69, [0.571, 0.429, 0, 0]),
        (0.71, [0.444, 0.333, 0.223, 0]),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, expected):
    assert shares(top_p=top_p) == pytest.approx(expected, abs=0.0011)


def test_top_p_is_taken_after_temperature_and_top_k():
    # Of the top three at temperature 1: 4/9, 3/9, 2/9; 0.5 needs two of them.
    assert shares(top_k=3, top_p=0.5) == [0.571, 0.429, 0, 0]


@pytest.mark.parametrize(
    ("settings", "probabilities"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        ({"top_k": 2}, [4 / 7, 3 / 7]),
        ({"top_p": 0.69}, [4 / 7, 3 / 7]),
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.8}, [16 / 25, 9 / 25]),
        ({"temperature": 0.0}, [0.4]),  # greedy: of the raw logits
    ],
)
def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(settings, probabilities):
    ids, logprobs = sample_tokens(3 + LOGITS.repeat(1000, 1), GRID, SamplingParams(**settings))
    assert set(ids.tolist()) == set(range(len(probabilities)))
    torch.testing.assert_close(logprobs, torch.tensor(probabilities).log()[ids])
    assert logprobs.dtype == torch.float32


def test_every_row_uses_its_own_draw():
    points = torch.tensor([0.05, 0.95, 0.5, 0.75], dtype=torch.float64)
    together, _ = sample_tokens(LOGITS.repeat(4, 1), points, SamplingParams())
    alone = [int(sample_tokens(LOGITS[None], point[None], SamplingParams())[0]) for point in points]
    assert together.tolist() == alone == [0, 3, 1, 2]


def test_the_ends_of_the_unit_interval_give_tokens_that_can_be_drawn():
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]])
    for point, expected in ((0.0, 1), (1 - 2**-53, 2)):
        ids, logprobs = sample_tokens(
            logits, torch.tensor([point], dtype=torch.float64), SamplingParams()
        )
        assert ids.item() == expected
        assert logprobs.isfinite().all()


@pytest.mark.parametrize("last", [0, 300, 4999])
def test_the_last_draw_of_a_large_vocabulary_is_a_token_that_can_be_drawn(last):
    logits = torch.randn((50, 5000), generator=torch.Generator().manual_seed(last))
    logits[:, last + 1 :] = float("-inf")
    _, logprobs = sample_tokens(
        logits, torch.full((50,), 1 - 2**-53, dtype=torch.float64), SamplingParams()
    )
    assert logprobs.isfinite().all()


def test_bfloat16_logits_are_drawn_in_full_precision():
    ids, logprobs = sample_tokens(LOGITS.bfloat16().repeat(1000, 1), GRID, SamplingParams())
    torch.testing.assert_close(logprobs, torch.log_softmax(LOGITS.bfloat16().float(), -1)[ids])


@pytest.mark.parametrize("size", [5, 4097, 5000, 20 * 256])
def test_ids_are_those_of_one_running_sum_over_the_vocabulary(size):
    logits = torch.randn((400, size), generator=torch.Generator().manual_seed(size)) * 3
    uniforms = torch.rand(400, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ids, _ = sample_tokens(logits, uniforms, SamplingParams(max_tokens=1))
    cumulative = torch.softmax(logits, -1).double().cumsum(-1)
    expected = torch.searchsorted(cumulative, uniforms[:, None] * cumulative[:, -1:], right=True)[
        :, 0
    ]
    assert torch.equal(ids, expected)

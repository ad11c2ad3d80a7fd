"""Losses on the world during RL: numbers by hand."""

import math

import pytest
import torch

from spa.algo.losses import (
    auxiliary_weights,
    clipped_absolute_error,
    cross_entropy,
    focus_weights,
    uncertain_turns,
)

TARGETS = torch.tensor([[True, False, True, False]])
LOGPROBS = torch.tensor([[-0.5, -9.0, -0.5, float("nan")]])


def test_the_denominator_decides_the_size_of_the_loss():
    # Two targets of 0.5 nats at lambda 0.05: over the targets .025, over four observed tokens .0125.
    assert 0.05 * cross_entropy(
        LOGPROBS, auxiliary_weights(TARGETS.float())
    ).item() == pytest.approx(0.025)
    assert 0.05 * cross_entropy(LOGPROBS, TARGETS.float() / 4).item() == pytest.approx(0.0125)


def test_no_targets_are_no_loss_and_no_gradient():
    logprobs = LOGPROBS.nan_to_num().requires_grad_()
    loss = cross_entropy(logprobs, auxiliary_weights(torch.zeros(1, 4)))
    loss.backward()
    assert loss.item() == 0 and logprobs.grad is not None and logprobs.grad.abs().sum() == 0


def test_micro_batches_add_up():
    logprobs = -torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    mask = torch.rand(4, 6, generator=torch.Generator().manual_seed(1)) < 0.5
    weights = auxiliary_weights(0.3 * mask)
    parts = sum(cross_entropy(logprobs[i : i + 1], weights[i : i + 1]) for i in range(4))
    assert torch.allclose(cross_entropy(logprobs, weights), torch.as_tensor(parts))
    assert cross_entropy(logprobs, weights).item() == pytest.approx(
        -0.3 * logprobs[mask].mean().item()
    )


def test_the_clipped_error_pulls_most_at_one_half_and_not_at_all_beyond_the_bound():
    logprobs = torch.tensor([[0.5, 0.25, 0.05]]).log().requires_grad_()
    loss = clipped_absolute_error(logprobs, torch.ones(1, 3), most=0.9)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 + 0.75 + 0.9)
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([-0.5, -0.25, 0.0])  # d(1 - p) / d log p = -p


def test_the_least_certain_answers_choose_the_states_that_follow():
    turns = torch.tensor([[0, 0, 1, 1, 2, 2], [0, 0, 1, 1, -1, -1]])
    answers = torch.tensor([[0, 1, 0, 1, 0, 1], [0, 1, 0, 1, 0, 0]]).bool()
    entropy = torch.tensor([[9.0, 0.1, 9, 0.8, 9, 0.95], [9, 0.9, 9, 0.99, 9, 9]])
    # Two of the three turns that a state follows: .9 and .8. No state follows .95 and .99.
    chosen = uncertain_turns(entropy, turns, answers, share=0.6)
    assert chosen.tolist() == [[False] * 4 + [True] * 2, [False] * 2 + [True] * 2 + [False] * 2]


def test_no_answers_choose_nothing():
    turns = torch.tensor([[0, 1]])
    assert not uncertain_turns(
        torch.ones(1, 2), turns, torch.zeros(1, 2, dtype=torch.bool), share=1.0
    ).any()


def test_focus_keeps_the_sum_and_alpha_zero_is_the_answers_alone():
    mask = torch.tensor([[True, True, True, False]])
    answers = torch.tensor([[False, True, True, True]])
    entropy = torch.tensor([[5.0, 1.0, 3.0, 7.0]])
    weights = focus_weights(mask, answers, entropy, alpha=0.5, beta=1.0)
    # before scaling .5, 1 + 1/2, 1 + 3/2; their sum 4.5 becomes 3
    assert weights[0].tolist() == pytest.approx([1 / 3, 1.0, 5 / 3, 0.0])
    alone = focus_weights(mask, answers, entropy, alpha=0.0, beta=0.0)
    assert alone[0].tolist() == pytest.approx([0, 1.5, 1.5, 0])
    assert math.isclose(float(weights.sum()), float(mask.sum()), rel_tol=1e-6)

"""Replayed examples behind a batch: numbers by hand."""

import numpy as np
import pytest
import torch
from helpers.batches import plain_streams

from spa.methods.replay import with_sequences
from spa.recipes.ppo_batch import with_replayed
from spa.types import PPOBatch


def batch() -> PPOBatch:
    """Two episodes of three tokens."""
    two = torch.full((2, 2), 0.5)
    return PPOBatch(
        input_ids=torch.tensor([[1, 2, 3], [4, 5, 6]]),
        lengths=torch.tensor([3, 3]),
        mask=torch.ones(2, 2, dtype=torch.bool),
        turns=torch.zeros(2, 2, dtype=torch.int64),
        turn_ends=torch.tensor([[False, True]] * 2),
        rewards=two,
        scores=torch.ones(2),
        group_ids=torch.tensor([0, 0]),
        tag_ids=torch.tensor([0, 0]),
        sampler_logprobs=two,
        **plain_streams(torch.ones(2, 2, dtype=torch.bool)),
        old_logprobs=two,
        advantages=two,
        returns=two,
    )


def test_examples_stand_behind_the_episodes():
    examples = [
        (np.array([7, 8, 9, 10], np.int32), np.array([False, False, True, True])),
        (np.array([7, 8], np.int32), np.array([False, True])),
    ]
    longer = with_sequences(batch(), examples)
    assert longer.input_ids.tolist() == [[1, 2, 3, 0], [4, 5, 6, 0], [7, 8, 9, 10], [7, 8, 0, 0]]
    assert longer.lengths.tolist() == [3, 3, 4, 2]
    assert longer.ce_weights.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0]]
    assert longer.mask.sum() == batch().mask.sum() and not longer.mask[2:].any()
    assert longer.turns[2:].unique().tolist() == [-1]
    assert longer.played.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("epochs", "mini_batches"), [(1, [[1, 2, 3], [0, 4, 5]]), (2, [[1, 2], [0, 3], [1, 4], [0, 5]])]
)
def test_equally_many_examples_are_in_each_mini_batch_of_all_epochs(epochs, mini_batches):
    examples = [(np.array([7, 8], np.int32), np.array([False, True]))] * 4
    longer = with_sequences(batch(), examples)
    plan = with_replayed([torch.tensor([1]), torch.tensor([0])] * epochs, longer)
    assert [part.tolist() for part in plan] == mini_batches

"""Replayed rows behind a batch: numbers by hand."""

import numpy as np
import torch

from spa.training.replay import with_replay
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
        old_logprobs=two,
        advantages=two,
        returns=two,
    )


def test_rows_stand_behind_the_episodes_and_equally_many_in_each_mini_batch():
    rows = [
        (np.array([7, 8, 9, 10], np.int32), np.array([False, False, True, True])),
        (np.array([7, 8], np.int32), np.array([False, True])),
    ]
    longer, cut = with_replay(batch(), [[torch.tensor([1]), torch.tensor([0])]], rows)
    assert longer.input_ids.tolist() == [[1, 2, 3, 0], [4, 5, 6, 0], [7, 8, 9, 10], [7, 8, 0, 0]]
    assert longer.lengths.tolist() == [3, 3, 4, 2]
    assert longer.replay is not None
    assert longer.replay.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0]]
    assert longer.mask.sum() == batch().mask.sum() and not longer.mask[2:].any()
    assert longer.turns[2:].unique().tolist() == [-1]
    assert [part.tolist() for part in cut[0]] == [[1, 2], [0, 3]]


def test_rows_count_over_all_epochs():
    rows = [(np.array([7, 8], np.int32), np.array([False, True]))] * 4
    _, cut = with_replay(batch(), [[torch.tensor([0, 1])], [torch.tensor([1, 0])]], rows)
    assert [[part.tolist() for part in epoch] for epoch in cut] == [[[0, 1, 2, 3]], [[1, 0, 4, 5]]]

"""Statistics per group of rows, whatever the order of the rows."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """Per-group statistics of one number per row. Groups are sorted by id."""

    index: Tensor  # int64   [B]  the group of each row, 0..G-1
    count: Tensor  # int64   [G]
    mean: Tensor  # float64 [G]
    std: Tensor  # float64 [G]  unbiased; 0 for a group of one
    max: Tensor  # float64 [G]

    def __len__(self) -> int:
        return self.count.shape[0]


def group_stats(scores: Tensor, group_ids: Tensor) -> GroupStats:
    """Statistics of `scores` `[B]` within the groups named by `group_ids` int64 `[B]`; B may be 0."""
    ids, index = torch.unique(group_ids, return_inverse=True)
    # Summing in order of score makes the result identical to the bit for every order of the rows.
    order = torch.argsort(scores, stable=True)
    values = scores.double()[order]
    rows = index[order]
    zeros = torch.zeros(len(ids), dtype=torch.float64, device=scores.device)

    count = torch.bincount(index, minlength=len(ids))
    mean = zeros.index_add(0, rows, values) / count
    # Deviations are squared in a second pass: sums of
    # squares would cancel where scores are large and alike.
    squares = zeros.index_add(0, rows, (values - mean[rows]).square())
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    # `include_self=False` leaves out the initial zeros, which would win where all scores of a group
    # are negative.
    maximum = zeros.scatter_reduce(0, rows, values, "amax", include_self=False)
    return GroupStats(index=index, count=count, mean=mean, std=std, max=maximum)

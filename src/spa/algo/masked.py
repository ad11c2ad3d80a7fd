"""Sums, means and whitening over a mask, and statistics per group of rows."""

from dataclasses import dataclass

import torch
from torch import Tensor


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of `values` where `mask` is True. Values outside the mask are ignored, even NaN. Any
    shape -> scalar."""
    # Do not multiply by the mask, because NaN times 0 is NaN.
    return torch.where(mask, values, 0).sum()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of `values` where `mask` is True; 0 for an empty mask. Any shape -> scalar."""
    return masked_sum(values, mask) / mask.sum().clamp(min=1)


def mean_per_row(values: Tensor, mask: Tensor) -> Tensor:
    """Compute the masked mean of each row, and average over rows. A row with an empty mask counts
    as 0. `[B, A]` -> scalar."""
    return (torch.where(mask, values, 0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Shift and scale `values` to mean 0 and unbiased variance 1 over the mask.

    Args:
        values: `[B, A]`.
        mask: bool `[B, A]`.

    Returns:
        `[B, A]` in the dtype of `values`; 0 outside the mask; close to 0 if all values are equal.
    """
    kept = torch.where(mask, values.double(), 0.0)
    count = mask.sum().double()
    mean = kept.sum() / count.clamp(min=1)
    # E[x^2] - E[x]^2 loses digits by cancellation, hence float64. Rounding can still make the
    # difference negative, hence the clamp.
    variance = ((kept.square().sum() - count * mean.square()) / (count - 1).clamp(min=1)).clamp(
        min=0
    )
    scaled = (values.double() - mean) * torch.rsqrt(variance + 1e-8)
    return torch.where(mask, scaled, 0.0).to(values.dtype)


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> Tensor:
    """Compute 1 - Var(returns - values) / Var(returns) over the mask; 0 if the returns have no
    variance. `[B, A]` -> scalar."""
    spread = returns[mask].var(correction=0) if mask.any() else returns.new_zeros(())
    if spread <= 0:
        return returns.new_zeros(())
    return 1 - (returns - values)[mask].var(correction=0) / spread


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """Statistics of each group of rows, where each row has one number. Groups are sorted by id."""

    index: Tensor  # int64   [B]  the group of each row, 0..G-1
    count: Tensor  # int64   [G]
    mean: Tensor  # float64 [G]
    std: Tensor  # float64 [G]  unbiased; 0 for a group of one
    max: Tensor  # float64 [G]

    def __len__(self) -> int:
        return self.count.shape[0]


def group_stats(scores: Tensor, group_ids: Tensor) -> GroupStats:
    """Compute statistics of `scores` `[B]` within the groups that `group_ids`, int64 `[B]`,
    defines; B may be 0."""
    ids, index = torch.unique(group_ids, return_inverse=True)
    # Summing in order of score makes the result bit-identical for every order of the rows.
    order = torch.argsort(scores, stable=True)
    values = scores.double()[order]
    rows = index[order]
    zeros = torch.zeros(len(ids), dtype=torch.float64, device=scores.device)

    count = torch.bincount(index, minlength=len(ids))
    mean = zeros.index_add(0, rows, values) / count
    # Deviations are squared in a second pass, because a one-pass sum of squares loses digits if
    # scores are large and nearly equal.
    squares = zeros.index_add(0, rows, (values - mean[rows]).square())
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    # `include_self=False` leaves out the initial zeros, which would be the maximum if all scores of
    # a group are negative.
    maximum = zeros.scatter_reduce(0, rows, values, "amax", include_self=False)
    return GroupStats(index=index, count=count, mean=mean, std=std, max=maximum)

"""Normalization of episode scores and of rewards."""

from typing import Literal

import torch
from torch import Tensor

from spa.algo.masked import GroupStats, group_stats

Grouping = Literal["state", "inductive", "batch"]
Method = Literal["identity", "mean", "mean_std", "asym_clip"]


def normalize_scores(
    scores: Tensor, group_ids: Tensor, tag_ids: Tensor, *, grouping: Grouping, method: Method
) -> Tensor:
    """Normalize scores, which include format penalties, within their group.

    Args:
        scores: float `[B]`, one per episode.
        group_ids: int64 `[B]`, equal for the episodes of one puzzle.
        tag_ids: int64 `[B]`, equal for the episodes of one environment tag.
        grouping: compare within state (`group_ids`), inductive (`tag_ids`) or batch (all rows).
        method: identity, mean (x - mean), mean_std ((x - mean) / (std + 1e-6) with the unbiased std, 0 where std <=
            1e-6), asym_clip (mean_std clamped to [-1, 3]).

    Returns:
        `[B]` in the dtype of `scores`; unchanged if every group has one row, because there is
        nothing to compare.

    Raises:
        ValueError: grouping or method is unknown.
    """
    if method not in ("identity", "mean", "mean_std", "asym_clip"):
        raise ValueError(
            f"normalize_scores: unknown method {method!r}; use identity, mean, mean_std or asym_clip"
        )
    stats = group_stats(scores, _groups(group_ids, tag_ids, grouping))
    if method == "identity" or bool((stats.count <= 1).all()):
        return scores
    relative = scores.double() - stats.mean[stats.index]
    if method != "mean":
        relative = relative * _scale(stats)
    if method == "asym_clip":
        relative = relative.clamp(-1.0, 3.0)
    return relative.to(scores.dtype)


def normalize_rewards(
    rewards: Tensor,
    last: Tensor,
    scores: Tensor,
    group_ids: Tensor,
    tag_ids: Tensor,
    *,
    grouping: Grouping,
    method: Method,
    step_discount: Tensor | None = None,
    path_discount: Tensor | None = None,
    centre: bool = True,
) -> Tensor:
    """Normalize rewards so that the return from an episode's first token is the episode's
    normalized discounted score.

    For an episode with rewards r_t, let G = sum over t of r_t D_t, with D_t the product of the
    discounts before t. The result is r_t / s + (1 - d_t) c, and on the last token r_t / s + c. Here
    s is the standard deviation of the group's scores (1 for the methods identity and mean), and d_t
    is the discount after t. The constant c makes the new return (G - mean of the group's G) / s.

    Scores are discounted first and normalized second. If the mean were subtracted first, it would
    be discounted with the rewards, and the longer of two failed episodes would get the higher
    return. Rewards and scores are divided by the standard deviation of undiscounted scores. The
    standard deviation of discounted scores would shrink as episodes get longer. The constant c,
    which accounts for the mean and the clamp, is added to the return from every token: all of it on
    the last token, and `1 - step_discount` of it on the others. Without a discount, the rewards add
    up to `normalize_scores`.

    Args:
        rewards: float `[B, A]`, on the last token of each turn or of the episode; each row adds up to its score.
        last: bool `[B, A]`, True on the last of these tokens in each row.
        scores, group_ids, tag_ids, grouping, method: as for `normalize_scores`.
        step_discount: float `[B, A]`, the discount from a token's return to the next token's
            return, 1 outside the mask; None: no discount.
        path_discount: float `[B, A]`, the discounts between the first token and a reward, if they
            differ from `step_discount`: bi-level GAE discounts from turn to turn and skips the
            tokens in between.
        centre: subtract the mean. Not needed by an estimator that subtracts a group mean itself.

    Returns:
        `[B, A]` in the dtype of `rewards`.
    """
    discount = (
        torch.ones_like(rewards, dtype=torch.float64)
        if step_discount is None
        else step_discount.double()
    )
    # [B, A]: the discount of a reward at each token, as seen from the episode's first token.
    steps = discount if path_discount is None else path_discount.double()
    before = torch.cat([torch.ones_like(discount[:, :1]), steps[:, :-1].cumprod(dim=1)], dim=1)
    discounted = (
        scores.double() if step_discount is None else (rewards.double() * before).sum(dim=1)
    )
    by = _groups(group_ids, tag_ids, grouping)
    stats = group_stats(scores, by)
    scale = torch.ones_like(discounted)
    mean = torch.zeros_like(discounted)
    if method != "identity" and not bool((stats.count <= 1).all()):
        mean = group_stats(discounted, by).mean[stats.index]
        if method != "mean":
            scale = _scale(stats)
    wanted = (discounted - mean) * scale
    if method == "asym_clip":
        wanted = wanted.clamp(-1.0, 3.0)
    if not centre:
        wanted = wanted + mean * scale
    scaled = rewards * scale.to(rewards.dtype)[:, None]
    rest = wanted - (scaled.double() * before).sum(dim=1)
    # With (1 - discount) times `rest` on each token and `rest` on the last one, the return from
    # every token grows by exactly `rest`.
    return scaled + (rest[:, None] * torch.where(last, 1.0, 1 - discount)).to(rewards.dtype)


def _groups(group_ids: Tensor, tag_ids: Tensor, grouping: Grouping) -> Tensor:
    """The group of each row, int64 `[B]`."""
    if grouping not in ("state", "inductive", "batch"):
        raise ValueError(f"unknown grouping {grouping!r}; use state, inductive or batch")
    if grouping == "batch":
        return torch.zeros_like(group_ids)
    return group_ids if grouping == "state" else tag_ids


def _scale(stats: GroupStats) -> Tensor:
    """The factor that divides each row by its group's standard deviation, float64 `[B]`."""
    std = stats.std[stats.index]
    # Scores that are equal up to rounding have a tiny standard deviation. Dividing by it would
    # magnify the rounding errors.
    return torch.where(std > 1e-6, 1 / (std + 1e-6), 0.0)

"""Normalisation of episode scores."""

from typing import Literal

import torch
from torch import Tensor

from spa.algo.groups import group_stats

Grouping = Literal["state", "inductive", "batch"]
Method = Literal["identity", "mean", "mean_std", "asym_clip"]


def normalize_scores(
    scores: Tensor, group_ids: Tensor, tag_ids: Tensor, *, grouping: Grouping, method: Method
) -> Tensor:
    """Scores relative to the others of their group, format penalties included.

    Args:
        scores: float `[B]`, one per episode.
        group_ids: int64 `[B]`, equal for the episodes of one puzzle.
        tag_ids: int64 `[B]`, equal for the episodes of one environment tag.
        grouping: compare within state (`group_ids`), inductive (`tag_ids`) or batch (all rows).
        method: identity, mean (x - mean), mean_std ((x - mean) / (std + 1e-6) with the unbiased std, 0 where std <=
            1e-6), asym_clip (mean_std clamped to [-1, 3]).

    Returns:
        `[B]` in the dtype of `scores`; `scores` themselves if every group has one row, as there is nothing to compare.

    Raises:
        ValueError: grouping or method is unknown.
    """
    if method not in ("identity", "mean", "mean_std", "asym_clip"):
        raise ValueError(f"normalize_scores: unknown method {method!r}; use identity, mean, mean_std or asym_clip")
    by = {"state": group_ids, "inductive": tag_ids, "batch": torch.zeros_like(group_ids)}.get(grouping)
    if by is None:
        raise ValueError(f"normalize_scores: unknown grouping {grouping!r}; use state, inductive or batch")
    stats = group_stats(scores, by)
    if method == "identity" or bool((stats.count <= 1).all()):
        return scores
    relative = scores.double() - stats.mean[stats.index]
    if method != "mean":
        std = stats.std[stats.index]
        relative = torch.where(std > 1e-6, relative / (std + 1e-6), 0.0)
    if method == "asym_clip":
        relative = relative.clamp(-1.0, 3.0)
    return relative.to(scores.dtype)


def normalize_turn_rewards(
    rewards: Tensor,
    last: Tensor,
    scores: Tensor,
    group_ids: Tensor,
    tag_ids: Tensor,
    *,
    grouping: Grouping,
    method: Method,
) -> Tensor:
    """Rewards per turn whose sum is the normalised score of the episode.

    Each reward is divided by what the score is divided by; what is left of the normalised score (the mean that is
    subtracted, the clamp) stands on the last token, so that a turn's reward says the same about it in every episode.

    Args:
        rewards: float `[B, A]`, on the last token of each turn; each row adds up to its score.
        last: bool `[B, A]`, the last of these tokens in each row.
        scores, group_ids, tag_ids, grouping, method: as for `normalize_scores`.

    Returns:
        `[B, A]` in the dtype of `rewards`.
    """
    wanted = normalize_scores(scores, group_ids, tag_ids, grouping=grouping, method=method).to(rewards.dtype)
    by = {"state": group_ids, "inductive": tag_ids, "batch": torch.zeros_like(group_ids)}[grouping]
    stats = group_stats(scores, by)
    scale = torch.ones_like(scores, dtype=torch.float64)
    if method in ("mean_std", "asym_clip") and not bool((stats.count <= 1).all()):
        std = stats.std[stats.index]
        scale = torch.where(std > 1e-6, 1 / (std + 1e-6), 0.0)
    scaled = rewards * scale.to(rewards.dtype)[:, None]
    return torch.where(last, scaled + (wanted - scaled.sum(dim=1))[:, None], scaled)

"""Select the groups of episodes to train on by the differences between their scores."""

from typing import Literal

import torch
from torch import Tensor

from spa.algo.masked import group_stats
from spa.types import Metrics

FilterKind = Literal["std", "std_rev"]
FilterStrategy = Literal["top_k", "top_k_abs", "top_p", "top_p_softmax", "min_p"]

FILTERS: dict[str, tuple[FilterKind, FilterStrategy]] = {
    "std": ("std", "top_k"),
    "std_rev": ("std_rev", "top_k"),
    "top_p": ("std", "top_p"),
    "top_p_softmax": ("std", "top_p_softmax"),
    "top_k": ("std", "top_k"),
    "top_k_abs": ("std", "top_k_abs"),
    "min_p": ("std", "min_p"),
}
"""`rollout_filter_type` -> kind and strategy."""

# Rounding can give equal scores a standard deviation of this size.
_ZERO = 1e-10
_SLACK = 0.01
"""Slack of top_p, in units of the scores."""


def select_groups(
    scores: Tensor,
    group_ids: Tensor,
    *,
    ratio: float,
    kind: FilterKind = "std",
    strategy: FilterStrategy = "top_k",
    include_zero: bool = False,
) -> tuple[Tensor, Metrics]:
    """Select the groups with the strongest signal, or with the weakest (std_rev).

    A group's signal s is the unbiased standard deviation of its scores; std_rev prefers the
    smallest. Groups whose scores are all equal are dropped unless `include_zero`. Of the G groups:

    * top_k keeps max(1, int(ratio G)).
    * top_k_abs keeps int(ratio), at least 1.
    * top_p keeps the strongest groups until their signals add up to ratio * sum(s) - 0.01; never a
      group with s = 0.
    * top_p_softmax keeps the strongest groups until their softmax(s) add up to ratio.
    * min_p keeps s >= ratio max(s), or s <= min(s) / ratio for std_rev.

    With ratio >= 1 and `include_zero`, top_k and both top_p strategies filter nothing. At least one
    group is kept as long as one is eligible. If no group is eligible, none is kept, and the caller
    skips the update.

    Args:
        scores: float `[B]`, un-normalized; pass episode lengths or entropies instead to filter by these.
        group_ids: int64 `[B]`, rows in any order.
        ratio: positive; a fraction, number or mass, depending on `strategy`.
        kind: signal of a group.
        strategy: selection rule.
        include_zero: also allow groups whose scores are all equal.

    Returns:
        keep: bool `[B]`, equal for all rows of a group.
        metrics: rollout/in_group_std, _max and _mean averaged over all groups;
            rollout/chosen_in_group_* over the kept groups (0 if none); rollout/kept_count and
            groups_zero_std (numbers of groups); rollout/kept_ratio (share of kept groups).

    Raises:
        ValueError: kind or strategy is unknown, or ratio is not positive.
    """
    if ratio <= 0:
        raise ValueError(f"select_groups: ratio must be above 0, got {ratio}")
    if kind not in ("std", "std_rev"):
        raise ValueError(f"select_groups: unknown kind {kind!r}; use std or std_rev")
    stats = group_stats(scores, group_ids)
    zero = stats.std <= _ZERO
    # top_p never chooses a group without signal, so keeping all groups needs a separate case.
    off = ratio >= 1 and include_zero and strategy in ("top_k", "top_p", "top_p_softmax")
    if off:
        chosen = torch.ones_like(zero)
    else:
        eligible = torch.ones_like(zero) if include_zero else ~zero
        chosen = _choose(stats.std, eligible, ratio, strategy, smallest=kind == "std_rev")

    kept = int(chosen.sum())
    groups = len(stats)
    metrics: Metrics = {
        "rollout/kept_count": float(kept),
        "rollout/kept_ratio": kept / max(groups, 1),
        "rollout/groups_zero_std": float(zero.sum()),
    }
    for name, values in (("std", stats.std), ("max", stats.max), ("mean", stats.mean)):
        metrics[f"rollout/in_group_{name}"] = _mean(values)
        metrics[f"rollout/chosen_in_group_{name}"] = _mean(values[chosen])
    return chosen[stats.index], metrics


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else 0.0


def _choose(
    signal: Tensor,
    eligible: Tensor,
    ratio: float,
    strategy: FilterStrategy,
    *,
    smallest: bool,
) -> Tensor:
    """Choose groups, bool `[G]`. Ties go to the group with the smaller id."""
    groups = len(signal)
    rank = torch.argsort(signal, descending=not smallest, stable=True)
    # Remove groups that are not eligible, so that none of them counts towards `keep`.
    rank = rank[eligible[rank]]
    match strategy:
        case "top_k":
            keep = max(1, int(ratio * groups))
        case "top_k_abs":
            keep = max(1, int(ratio))
        case "top_p":
            # A group of signal 0 adds nothing to the sum, so it never helps to reach the threshold.
            rank = rank[signal[rank] > 0]
            reached = signal[rank].cumsum(0) >= min(ratio, 1.0) * signal[rank].sum() - _SLACK
            keep = _first_true(reached)
        case "top_p_softmax":
            mass = torch.softmax(-signal[rank] if smallest else signal[rank], dim=0)
            # The slack is for rounding: the masses of all groups may add up to slightly less than
            # 1.
            keep = _first_true(mass.cumsum(0) >= min(ratio, 1.0) - 1e-12)
        case "min_p":
            ranked = signal[rank]
            good = ranked <= ranked[:1] / ratio if smallest else ranked >= ranked[:1] * ratio
            keep = max(1, int(good.sum()))
        case _:
            raise ValueError(
                f"select_groups: unknown strategy {strategy!r}; "
                "use top_k, top_k_abs, top_p, top_p_softmax or min_p"
            )
    chosen = torch.zeros(groups, dtype=torch.bool, device=signal.device)
    chosen[rank[:keep]] = True
    return chosen


def _first_true(reached: Tensor) -> int:
    """Return the number of leading entries up to and including the first True; `len(reached) + 1`
    if there is none."""
    # `reached` is the comparison of a growing sum with a threshold, so all False entries come
    # first.
    return int((~reached).sum()) + 1

"""Exact bias and variance of policy-gradient estimators. Every possible group of episodes is
enumerated with its probability.

A turn is a single sampled token here. So token-level and turn-level discounts are the same, and the
training estimators run unchanged.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from spa.algo.advantages import bi_level_gae, gae, grpo, reinforce_plus_plus, rloo
from spa.algo.masked import group_stats, whiten
from spa.algo.turn_credit import Turns, gigpo, rewards_to_go, turn_gae, turn_rloo
from spa_bench.estimator_bias.worlds import Episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """All possible groups of G episodes as one batch, with M groups, B = M G rows and K turns."""

    probability: Tensor  # float64 [M]  of each group
    rows: Tensor  # int64   [B]  the episode of each row
    rewards: Tensor  # float64 [B, K]
    values: Tensor  # float64 [B, K]  of the critic
    mask: Tensor  # bool    [B, K]
    turns: Tensor  # int64   [B, K]
    states: Tensor  # int64   [B, K]
    ids: Tensor  # int64   [B]  the group of each row

    @property
    def outcomes(self) -> Tensor:
        """float64 [B]: total reward of each row."""
        return self.rewards.sum(dim=1)


Estimator = Callable[[Groups], Tensor]
"""A function that returns advantages, float64 [B, K]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The mean gradient of an estimator compared with the exact one, and the noise of single
    groups.

    * `scale`: the mean's component along the exact gradient, relative to the exact gradient's
      length. It is 1 if unbiased, and the learning rate can compensate for other values.
    * `error`: distance of the mean from the exact gradient, relative to the exact gradient's
      length.
    * `angle`: degrees between the two. At 0, only the scale is wrong. At 90 or more, an update does
      not increase the expected reward.
    * `noise`: standard deviation of a single group's estimate, relative to the length of the mean.
    """

    scale: float
    error: float
    angle: float
    noise: float
    mean: Tensor  # float64 [P]


def groups_of(episodes: Episodes, size: int, *, critic_error: float = 0.0) -> Groups:
    """Enumerate all groups of `size` episodes, each multiset once with its multinomial probability.

    The critic returns the policy's exact value plus `critic_error` in every state.
    """
    count = len(episodes.probability)
    # Advantages do not depend on the order within a group. So one multiset represents all its
    # orders, and its probability is multiplied by their number.
    picks = torch.tensor(list(combinations_with_replacement(range(count), size)))
    log_p = episodes.probability.log()[picks].sum(dim=1)
    # [M, N]: number of times that episode n is in group m.
    repeats = torch.stack([(picks == n).sum(dim=1) for n in range(count)], dim=1).double()
    # log of G! / prod_n (repeats_n)!, the multinomial coefficient; lgamma(x + 1) = log x!.
    orders = math.lgamma(size + 1) - torch.lgamma(repeats + 1).sum(dim=1)
    rows = picks.reshape(-1)
    present = episodes.present
    turns = torch.arange(present.shape[1]).expand_as(present)
    return Groups(
        probability=(log_p + orders).exp(),
        rows=rows,
        rewards=episodes.rewards[rows],
        values=((episodes.values + critic_error) * present)[rows],
        mask=present[rows],
        turns=torch.where(present, turns, -1)[rows],
        states=episodes.states[rows],
        ids=torch.arange(len(picks)).repeat_interleave(size),
    )


def judge(episodes: Episodes, groups: Groups, estimator: Estimator) -> Verdict:
    """Compare an estimator with the exact gradient. Computes the exact mean and standard deviation,
    over all groups, of (1/G) sum_i sum_t A_it grad log pi(a_it | s_it)."""
    # Estimators may return any values outside the mask.
    advantages = torch.where(groups.mask, estimator(groups), 0.0)
    # [B, K, 1] * [B, K, P], summed over turns -> [B, P]: each episode's estimate.
    per_row = (advantages[:, :, None] * episodes.scores[groups.rows]).sum(dim=1)
    # [M, G, P] -> [M, P]: a group's estimate is the mean over its G episodes.
    estimates = per_row.reshape(len(groups.probability), -1, per_row.shape[1]).mean(dim=1)
    # These are the exact expectation and variance over all groups, without sampling error.
    mean = (groups.probability[:, None] * estimates).sum(dim=0)
    variance = (groups.probability * (estimates - mean).square().sum(dim=1)).sum()
    exact = episodes.gradient
    length = float(exact.norm())
    product = float(mean @ exact)
    # A zero mean has no direction. Use cosine 0 (90 degrees), because the reward does not increase.
    cosine = product / (length * float(mean.norm())) if float(mean.norm()) > 1e-12 else 0.0
    return Verdict(
        scale=product / length**2,
        error=float((mean - exact).norm()) / length,
        # Rounding may give a cosine slightly above 1, for which acos is undefined.
        angle=math.degrees(math.acos(max(-1.0, min(1.0, cosine)))),
        noise=float(variance.sqrt()) / max(float(mean.norm()), 1e-12),
        mean=mean,
    )


def group_mean_to_go(groups: Groups) -> Tensor:
    """Rewards to go minus their mean over all episodes of the group that reached the turn,
    including the episode itself.

    This equals `turn_rloo` times 1 - 1/n, where n is the number of these episodes.
    """
    where = Turns.of(groups.turns, groups.mask)
    to_go = rewards_to_go(where.sums(groups.rewards), 1.0)
    return to_go - _mean_of_present(to_go, where.present, groups.ids, own=True)


def per_index(groups: Groups, *, own: bool) -> Tensor:
    """Center each turn's reward over the episodes of the group that have a reward at this turn
    index, then sum the rewards to go. According to verl-project/verl#7244, this is biased.

    An episode's last reward is its outcome, which is centered over the whole group. With `own`, the
    means include the episode's own reward.
    """
    where = Turns.of(groups.turns, groups.mask)
    rewards = where.sums(groups.rewards)
    # The reward of the last played turn is the outcome of the episode.
    last = where.present & (
        torch.arange(rewards.shape[1]) == where.present.sum(dim=1, keepdim=True) - 1
    )
    outcome = torch.where(last, rewards, 0.0).sum(dim=1)
    # An all-True mask of shape [B, 1]: every episode has an outcome, so the mean is over the whole
    # group.
    ones = torch.ones(len(outcome), 1, dtype=torch.bool)
    centred = outcome[:, None] - _mean_of_present(outcome[:, None], ones, groups.ids, own=own)
    # Earlier rewards are centered only over the episodes that continue after this index. Episodes
    # that stop early are missing from these means, and this selection causes the bias.
    between = where.present & ~last
    steps = torch.where(
        between, rewards - _mean_of_present(rewards, between, groups.ids, own=own), 0.0
    )
    return rewards_to_go(steps, 1.0) + centred


def _mean_of_present(values: Tensor, present: Tensor, ids: Tensor, *, own: bool) -> Tensor:
    known = torch.where(present, values, 0.0)
    shape = (int(ids.max()) + 1, values.shape[1])
    # Sums over each group, broadcast to its rows: [M, K] -> [B, K].
    totals = torch.zeros(shape, dtype=torch.float64).index_add_(0, ids, known)[ids]
    counts = torch.zeros(shape, dtype=torch.float64).index_add_(0, ids, present.double())[ids]
    # Without the episode's own reward, the mean does not depend on its action at this index. The
    # mean is 0 if no other episode has a reward there.
    if not own:
        totals = totals - known
        counts = counts - 1
    return torch.where(counts > 0, totals / counts.clamp(min=1), 0.0)


def whitened(estimator: Estimator) -> Estimator:
    """Wrap an estimator so that its advantages have mean 0 and variance 1 over the tokens of a
    batch. Here, each group is a batch."""

    def white(groups: Groups) -> Tensor:
        advantages = estimator(groups)
        cells = (len(groups.probability), -1, advantages.shape[1])
        # The trainer whitens over a batch, and here each group is one, so map over groups.
        parts = torch.vmap(whiten)(advantages.reshape(cells), groups.mask.reshape(cells))
        return parts.reshape(advantages.shape)

    return white


def only_with_spread(estimator: Estimator) -> Estimator:
    """Wrap an estimator so that it drops groups whose episodes all have the same score. Its mean is
    over the remaining groups."""

    def filtered(groups: Groups) -> Tensor:
        spread = group_stats(groups.outcomes, groups.ids).std > 1e-9
        # The mean is over kept groups only, so divide by the probability that a group is kept.
        kept = float(groups.probability[spread].sum())
        return estimator(groups) * spread[groups.ids, None] / max(kept, 1e-12)

    return filtered


def _gae(groups: Groups, lam: float) -> Tensor:
    return gae(groups.rewards, groups.values, groups.mask, 1.0, lam)[0]


def _bi_level(groups: Groups, lam: float) -> Tensor:
    return bi_level_gae(groups.rewards, groups.values, groups.mask, groups.mask, 1.0, lam, 1.0)[0]


def _turn_rloo(groups: Groups) -> Tensor:
    return turn_rloo(groups.rewards, groups.turns, groups.mask, groups.ids, 1.0)[0]


def _gigpo(groups: Groups, anchors: Tensor) -> Tensor:
    return gigpo(groups.rewards, groups.turns, groups.mask, groups.ids, anchors, gamma=1.0)[0]


def _with_turns_left(groups: Groups) -> Tensor:
    """Anchor states combined with the turn index, which determines the number of turns left and so
    affects the reward to go."""
    # The multiplier exceeds every turn index, so each pair (state, turn) gets a unique integer.
    return groups.states * (groups.turns.shape[1] + 1) + groups.turns.clamp(min=0)


def _grpo(groups: Groups, norm_by_std: bool) -> Tensor:
    return grpo(groups.outcomes, groups.ids, groups.mask, norm_by_std)[0]


ESTIMATORS: Mapping[str, Estimator] = {
    "reinforce (reward to go)": lambda g: reinforce_plus_plus(g.rewards, g.mask, 1.0)[0],
    "reinforce_plus_plus (whitened)": whitened(
        lambda g: reinforce_plus_plus(g.rewards, g.mask, 1.0)[0]
    ),
    "grpo": lambda g: _grpo(g, True),
    "grpo without std": lambda g: _grpo(g, False),
    "grpo without std and zero-variance groups": only_with_spread(lambda g: _grpo(g, False)),
    "reinforce_plus_plus_baseline (whitened)": whitened(lambda g: _grpo(g, False)),
    "rloo": lambda g: rloo(g.outcomes, g.ids, g.mask)[0],
    "gae with exact critic and lam 1": lambda g: _gae(g, 1.0),
    "gae with exact critic and lam 0.5": lambda g: _gae(g, 0.5),
    "bi_level_gae with exact critic and lam 0.5": lambda g: _bi_level(g, 0.5),
    "turn_gae with exact critic and lam 0.5": lambda g: turn_gae(
        g.rewards, g.values, g.turns, g.mask, 1.0, 0.5
    )[0],
    "turn_rloo": _turn_rloo,
    "reward to go minus group mean": group_mean_to_go,
    "turn_rloo without zero-variance groups": only_with_spread(_turn_rloo),
    "gigpo with groups of equal state": lambda g: _gigpo(g, g.states),
    "gigpo with groups of equal state and turns left": lambda g: _gigpo(g, _with_turns_left(g)),
    "leave-one-out mean per turn index": lambda g: per_index(g, own=False),
    "group mean per turn index": lambda g: per_index(g, own=True),
}
"""The estimators under test. The last two and "reward to go minus group mean" are only for
comparison. All others can be used in training."""

"""Estimators that assign credit per turn. Equations and sources: docs/methods.md.

Values per token are `[B, A]` as in `spa.algo.advantages`. Values per turn are `[B, K]`, where K is
the largest number of turns. All tokens of a turn get the advantage of the turn.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spa.algo.advantages import Estimate
from spa.algo.masked import group_stats


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Assignment of the tokens of a batch to turns, with conversions between values per token and
    per turn."""

    index: Tensor  # int64 [B, A]  turn of each masked token, 0 elsewhere
    mask: Tensor  # bool  [B, A]
    present: Tensor  # bool  [B, K]  turns with at least one masked token

    @classmethod
    def of(cls, turns: Tensor, mask: Tensor) -> "Turns":
        """Build the assignment from `turns`, int64 `[B, A]` with -1 outside turns, and `mask`, bool
        `[B, A]`. Raises ValueError if a masked token has no turn."""
        if bool((turns[mask] < 0).any()):
            raise ValueError(
                "turns: a token inside the mask has turn -1; number the turn of every masked "
                "token from 0"
            )
        # `scatter` needs a turn for every position. Positions outside the mask get turn 0, and add
        # 0 to its sums.
        index = torch.where(mask, turns, 0)
        count = int(index.max()) + 1 if index.numel() else 0
        present = (
            torch.zeros(len(turns), count, dtype=torch.int64).scatter_add_(1, index, mask.long())
            > 0
        )
        return cls(index=index, mask=mask, present=present)

    def sums(self, values: Tensor) -> Tensor:
        """Sum `values` `[B, A]` over the masked tokens of each turn. Returns float64 `[B, K]`."""
        inside = torch.where(self.mask, values.double(), 0.0)
        return torch.zeros(self.present.shape, dtype=torch.float64).scatter_add_(
            1, self.index, inside
        )

    def first(self, values: Tensor) -> Tensor:
        """Return the entry of `values` `[B, A]` at the first masked token of each turn, `[B, K]`; 0
        where a row has no such turn."""
        out = torch.zeros(self.present.shape, dtype=values.dtype)
        # The loop runs backwards, so that the first token of a turn is written last.
        for position in reversed(range(values.shape[1])):
            rows = torch.nonzero(self.mask[:, position])[:, 0]
            out[rows, self.index[rows, position]] = values[rows, position]
        return out

    def tokens(self, per_turn: Tensor, dtype: torch.dtype) -> Tensor:
        """Copy values per turn, `[B, K]`, to the masked tokens of each turn. Returns `[B, A]`, 0
        outside the mask."""
        return torch.where(self.mask, per_turn.gather(1, self.index), 0.0).to(dtype)


def rewards_to_go(rewards: Tensor, gamma: float) -> Tensor:
    """Compute the discounted rewards-to-go G_t = r_t + gamma G_{t+1} of turn rewards, float64 `[B,
    K]`. Returns the same shape."""
    out = torch.zeros_like(rewards)
    following = rewards.new_zeros(len(rewards))
    for turn in reversed(range(rewards.shape[1])):
        following = rewards[:, turn] + gamma * following
        out[:, turn] = following
    return out


def turn_rloo(
    rewards: Tensor, turns: Tensor, mask: Tensor, group_ids: Tensor, gamma: float
) -> Estimate:
    """Subtract from the reward-to-go of turn t its mean over the other episodes of the group that
    reached turn t.

    The baseline is unbiased, because the action at turn t does not affect which episodes reach turn
    t. A turn that no other episode reached has the baseline 0. With one turn per episode, this is
    RLOO (arXiv 2402.14740). The version per turn follows verl-project/verl#7244.

    Args:
        rewards: `[B, A]`, each on any masked token of its turn.
        turns: int64 `[B, A]`, -1 outside turns.
        mask: bool `[B, A]`.
        group_ids: int64 `[B]`.
        gamma: discount per turn.

    Returns:
        advantages and returns (the rewards to go), both `[B, A]`.
    """
    where = Turns.of(turns, mask)
    to_go = rewards_to_go(where.sums(rewards), gamma)
    # An episode that did not reach a turn is left out of that turn's mean.
    known = torch.where(where.present, to_go, 0.0)
    _, index = torch.unique(group_ids, return_inverse=True)
    shape = (int(index.max()) + 1, to_go.shape[1])
    totals = torch.zeros(shape, dtype=torch.float64).index_add_(0, index, known)
    counts = torch.zeros(shape, dtype=torch.float64).index_add_(0, index, where.present.double())
    # The mean over the other episodes. Without others, the clamp makes it 0 / 1 = 0.
    baseline = (totals[index] - known) / (counts[index] - 1).clamp(min=1)
    return where.tokens(to_go - baseline, rewards.dtype), where.tokens(to_go, rewards.dtype)


def turn_gae(
    rewards: Tensor, values: Tensor, turns: Tensor, mask: Tensor, gamma: float, lam: float
) -> Estimate:
    """Generalised advantage estimation over turns, where an action is a whole response (Turn-PPO,
    arXiv 2512.17008).

    The value of a turn is the critic's value before its first sampled token. All tokens of a turn
    get the return of this first token.

    Shapes as for `turn_rloo`; `values` `[B, A]`; `gamma` and `lam` per turn.
    """
    where = Turns.of(turns, mask)
    reward = where.sums(rewards)
    value = where.first(values).double()
    advantages = torch.zeros_like(reward)
    next_value = reward.new_zeros(len(reward))
    next_advantage = reward.new_zeros(len(reward))
    for turn in reversed(range(reward.shape[1])):
        # If a row lacks this turn, the values of the next turn are kept, as in `bi_level_gae`.
        here = where.present[:, turn]
        advantage = (
            reward[:, turn] + gamma * next_value - value[:, turn] + gamma * lam * next_advantage
        )
        advantages[:, turn] = torch.where(here, advantage, 0.0)
        next_value = torch.where(here, value[:, turn], next_value)
        next_advantage = torch.where(here, advantage, next_advantage)
    return where.tokens(advantages, rewards.dtype), where.tokens(advantages + value, rewards.dtype)


def gigpo(
    rewards: Tensor,
    turns: Tensor,
    mask: Tensor,
    group_ids: Tensor,
    anchors: Tensor,
    *,
    gamma: float,
    step_weight: float = 1.0,
) -> Estimate:
    """Group-in-group advantages: compare each episode with its group, and each turn with other
    turns from the same state (GiGPO, arXiv 2505.10978; gigpo/core_gigpo.py of
    langfengQ/verl-agent).

    A_t = A_E + step_weight A_S. A_E is the episode's reward minus the mean of its group. A_S is the
    discounted return from turn t minus the mean return of the group's other episodes from their
    first visit to the same state. Unlike in the reference implementation, an episode counts once in
    A_E, regardless of its number of turns, and is never part of its own baseline in A_S. A turn
    whose state no other episode visited gets A_S = 0. Neither term is divided by a standard
    deviation (the reference's `mean_norm`).

    Args:
        rewards, turns, mask, group_ids: as for `turn_rloo`.
        anchors: int64 `[B, A]`, equal where turns of a group start from the same state.
        gamma: discount per turn, of A_S.
        step_weight: weight of A_S.

    Returns:
        advantages and returns (the rewards to go), both `[B, A]`.
    """
    where = Turns.of(turns, mask)
    per_turn = where.sums(rewards)
    to_go = rewards_to_go(per_turn, gamma)
    # Episode outcomes are undiscounted, like scores. Only A_S depends on the turn of a reward.
    outcomes = per_turn.sum(dim=1)
    stats = group_stats(outcomes, group_ids)
    episode = outcomes - stats.mean[stats.index]
    step = _relative_to_anchor(to_go, where.present, stats.index, where.first(anchors))
    advantages = episode[:, None] + step_weight * step
    return where.tokens(advantages, rewards.dtype), where.tokens(to_go, rewards.dtype)


def _relative_to_anchor(to_go: Tensor, present: Tensor, group: Tensor, anchors: Tensor) -> Tensor:
    """Return `to_go` minus its mean over the other episodes' first visits to the turn's state,
    float64 `[B, K]`; 0 if no other episode visited this state."""
    # From [B, K] to the N turns that were played, in row order.
    rows, turns = torch.nonzero(present, as_tuple=True)
    visits = _visits(rows, group[rows], anchors[rows, turns])
    values = to_go[rows, turns]
    # [V]: the return from each episode's first visit to each state.
    own = torch.zeros(visits.count, dtype=torch.float64)
    own[visits.visit[visits.first]] = values[visits.first]
    # Only first visits count, so that an episode that returns to a state counts once.
    totals = torch.zeros(len(visits.episodes), dtype=torch.float64)
    totals.index_add_(0, visits.state[visits.first], values[visits.first])
    episodes = visits.episodes[visits.state]
    baseline = (totals[visits.state] - own[visits.visit]) / (episodes - 1).clamp(min=1)
    out = torch.zeros_like(to_go)
    out[rows, turns] = torch.where(episodes > 1, values - baseline, 0.0)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visits:
    """Assignment of turns to the states from which they start. There are N turns, in row order, and
    S states; the same state in two groups counts as two states. V is the number of pairs of an
    episode and a state that it visits."""

    state: Tensor  # int64   [N]  number of the state, below S
    visit: Tensor  # int64   [N]  number of the pair, below V
    first: Tensor  # bool    [N]  True for the episode's first visit to the state
    episodes: Tensor  # float64 [S]  number of episodes that visit the state
    count: int  # V, the number of pairs


def _visits(rows: Tensor, group: Tensor, anchors: Tensor) -> _Visits:
    # The same state in two groups counts as two states, because episodes are compared only within
    # their group.
    _, state = torch.unique(torch.stack([group, anchors], dim=1), dim=0, return_inverse=True)
    pairs, visit = torch.unique(torch.stack([rows, state], dim=1), dim=0, return_inverse=True)
    # After a stable sort the first entry of each visit is its earliest turn.
    order = torch.argsort(visit, stable=True)
    starts = torch.ones(len(order), dtype=torch.bool)
    starts[1:] = visit[order][1:] != visit[order][:-1]
    first = torch.zeros_like(starts)
    first[order] = starts
    episodes = torch.bincount(state[first]).double()
    return _Visits(state=state, visit=visit, first=first, episodes=episodes, count=len(pairs))

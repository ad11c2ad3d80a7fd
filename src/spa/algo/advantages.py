"""Advantage estimators. None of them whitens advantages: `spa.algo.estimators` marks the estimators
whose advantages are whitened later.

Rewards, values and results are float `[B, A]`, masks bool `[B, A]`. Positions outside the mask
(prompts, environment text, padding) are skipped: the backward recursion leaves its state unchanged
there, so that time is counted in sampled tokens.
"""

import torch
from torch import Tensor

from spa.algo.masked import group_stats

Estimate = tuple[Tensor, Tensor]
"""(advantages, returns), both [B, A], 0 outside the mask."""


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Estimate:
    """Generalised advantage estimation (arXiv 1506.02438) with observation skipping.

    With gamma = lam = 1, the advantage of a masked token is the sum of all rewards from this token
    on, minus its value.

    Args:
        rewards: `[B, A]`, non-zero only inside the mask.
        values: `[B, A]`, from the critic; read only inside the mask.
        mask: bool `[B, A]`.
        gamma: discount per sampled token.
        lam: trace decay per sampled token.

    Returns:
        advantages and returns = advantages + values, not whitened.

    Raises:
        ValueError: a reward lies outside the mask, where it would be lost.
    """
    # Without turn ends, the turn level is never used, and its values remain 0.
    no_turns = torch.zeros_like(mask)
    return _backward_pass(rewards, values, mask, no_turns, gamma, lam, high_level_gamma=1.0)


def bi_level_gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    turn_ends: Tensor,
    gamma: float,
    lam: float,
    high_level_gamma: float,
) -> Estimate:
    """GAE on two levels: over turns, then over the tokens of each turn (Bi-Level GAE of VAGEN, as
    in RAGEN).

    Let e_1..e_n be the turn ends, R_i the reward at e_i and V the values. Over turns, A_i = R_i +
    high_level_gamma V(e_{i+1}) - V(e_i) + high_level_gamma lam A_{i+1}, with nothing after the
    last. GAE over the tokens of turn i then uses the reward A_i + V(e_i) at e_i and the tokens' own
    rewards elsewhere, as if the episode ended at e_i.

    Args:
        rewards: `[B, A]`, non-zero only inside the mask; only the reward at a turn's end reaches earlier turns.
        values: `[B, A]`.
        mask: bool `[B, A]`.
        turn_ends: bool `[B, A]`, True on the last masked token of each turn; turns without reward count like any other.
        gamma: discount per sampled token.
        lam: trace decay of both levels.
        high_level_gamma: discount per turn.

    Returns:
        advantages and returns = advantages + values, not whitened.

    Raises:
        ValueError: a reward or a turn end lies outside the mask.
    """
    return _backward_pass(rewards, values, mask, turn_ends, gamma, lam, high_level_gamma)


def _backward_pass(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    turn_ends: Tensor,
    gamma: float,
    lam: float,
    high_level_gamma: float,
) -> Estimate:
    # A reward outside the mask belongs to no sampled token, so the recursion would silently drop
    # it.
    if bool(((rewards != 0) & ~mask).any()):
        raise ValueError(
            "rewards: a token with mask 0 has a non-zero reward; put every reward on a "
            "token with mask 1"
        )
    if bool((turn_ends & ~mask).any()):
        raise ValueError(
            "turn_ends: a turn ends on a token with mask 0; end each turn on a token with mask 1"
        )
    rows, width = rewards.shape
    advantages = torch.zeros_like(rewards)
    # The value after the last token of a row is 0, because the episode ends there.
    next_value = rewards.new_zeros(rows)
    next_advantage = rewards.new_zeros(rows)
    next_turn_value = rewards.new_zeros(rows)
    next_turn_advantage = rewards.new_zeros(rows)
    # A_t needs A_{t+1}, so the loop runs back in time, over all rows at once.
    for t in reversed(range(width)):
        reward = rewards[:, t]
        value = values[:, t]
        here = mask[:, t]
        end = turn_ends[:, t]
        token_advantage = reward + gamma * next_value - value + gamma * lam * next_advantage
        # At a turn's last token, the token level has the reward A_turn + V and no later tokens, so
        # its advantage is A_turn. Therefore one backward pass computes both levels.
        turn_advantage = (
            reward + high_level_gamma * (next_turn_value + lam * next_turn_advantage) - value
        )
        advantage = torch.where(end, turn_advantage, token_advantage)
        advantages[:, t] = torch.where(here, advantage, 0.0)
        # Positions outside the mask keep these values, so that the next sampled token is one step
        # away.
        next_value = torch.where(here, value, next_value)
        next_advantage = torch.where(here, advantage, next_advantage)
        next_turn_value = torch.where(end, value, next_turn_value)
        next_turn_advantage = torch.where(end, turn_advantage, next_turn_advantage)
    returns = torch.where(mask, advantages + values, 0.0)
    return advantages, returns


def grpo(scores: Tensor, group_ids: Tensor, mask: Tensor, norm_by_std: bool) -> Estimate:
    """Assign each episode's score, relative to its group, to every masked token (GRPO, arXiv
    2402.03300, and Dr. GRPO, arXiv 2503.20783).

    Args:
        scores: `[B]`, one outcome per episode.
        group_ids: int64 `[B]`, equal for the episodes of one puzzle, in any order.
        mask: bool `[B, A]`.
        norm_by_std: divide by the group's unbiased standard deviation (GRPO) or not (Dr. GRPO).

    Returns:
        advantages and returns, equal. An episode that is alone in its group gets 0.
    """
    stats = group_stats(scores, group_ids)
    # Use float64, as the statistics do, so that differences of nearly equal scores keep their
    # digits.
    relative = scores.double() - stats.mean[stats.index]
    # If all scores of a group are equal, the 1e-6 makes the result 0 instead of NaN.
    if norm_by_std:
        relative = relative / (stats.std[stats.index] + 1e-6)
    return _broadcast(relative, scores, mask)


def rloo(scores: Tensor, group_ids: Tensor, mask: Tensor) -> Estimate:
    """Assign each score minus the mean of the other scores in its group (RLOO, arXiv 2402.14740) to
    every masked token; 0 for a group of one.

    Shapes as for `grpo`.
    """
    stats = group_stats(scores, group_ids)
    count = stats.count[stats.index].double()
    # s_i - mean of the others = (s_i - mean of all) n / (n - 1).
    relative = (scores.double() - stats.mean[stats.index]) * count / (count - 1).clamp(min=1)
    return _broadcast(relative, scores, mask)


def reinforce_plus_plus(rewards: Tensor, mask: Tensor, gamma: float) -> Estimate:
    """Compute the discounted reward-to-go, without a baseline (REINFORCE++, arXiv 2501.03262).

    This is GAE with all values 0 and lam = 1, so environment text is skipped here, too. Shapes as
    for `gae`.
    """
    return gae(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)


def reinforce_plus_plus_baseline(scores: Tensor, group_ids: Tensor, mask: Tensor) -> Estimate:
    """Assign each score minus the mean of its group to every masked token. Shapes as for `grpo`."""
    return grpo(scores, group_ids, mask, norm_by_std=False)


def _broadcast(per_row: Tensor, like: Tensor, mask: Tensor) -> Estimate:
    # All sampled tokens of an episode get the same advantage, because there is only one outcome.
    advantages = per_row.to(like.dtype).unsqueeze(1) * mask
    return advantages, advantages.clone()


def length_weighted(advantages: Tensor, mask: Tensor) -> Tensor:
    """Divide the advantages `[B, A]` of each row by the row's relative length: its number of masked
    tokens divided by the mean number over rows. Long rows then have no larger weight in a mean over
    tokens. This is the original's `grpo_advantage_length_weight`."""
    lengths = mask.sum(dim=1, keepdim=True).float()
    return advantages * (lengths.mean() / lengths.clamp(min=1))

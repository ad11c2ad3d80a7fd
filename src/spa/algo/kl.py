"""The KL penalty as part of the reward, and the controllers of its coefficient."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spa.algo.losses import KLKind, kl_penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class KLController:
    """The coefficient of the KL penalty. Fixed if `target` is None, else adaptive (arXiv
    1909.08593, section 2.2)."""

    coef: float
    target: float | None = None  # nats per token
    # episodes over which the coefficient can change by a factor of about e^0.2
    horizon: int = 10_000

    def update(self, kl: float, episodes: int) -> "KLController":
        """The controller after `episodes` episodes of mean per-token `kl` under the present
        coefficient.

        Above the target the coefficient grows, below it shrinks, by at most 20 % of episodes /
        horizon.
        """
        if self.target is None:
            return self
        # Bounded, so that a single step of large KL cannot multiply the coefficient.
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        return replace(self, coef=self.coef * (1 + error * episodes / self.horizon))


def kl_in_reward(
    rewards: Tensor,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor,
    *,
    coef: float,
    kind: KLKind,
) -> tuple[Tensor, Tensor]:
    """Rewards minus `coef` times the per-token KL estimate of `kind`.

    Args:
        rewards: `[B, A]`.
        logprobs: `[B, A]`, of the policy that is about to be updated.
        ref_logprobs: `[B, A]`, of the reference policy.
        mask: bool `[B, A]`.
        coef: the controller's coefficient.
        kind: see `spa.algo.losses.kl_penalty`.

    Returns:
        rewards `[B, A]`, and the KL estimate `[B, A]`, 0 outside the mask, whose mean goes to `KLController.update`.
    """
    kl = torch.where(mask, kl_penalty(logprobs, ref_logprobs, kind), 0.0)
    # Charged at each sampled token, where it arises, not at the end of the episode.
    return rewards - coef * kl, kl

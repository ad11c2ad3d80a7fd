"""Actor and critic losses, built from the configuration."""

from dataclasses import dataclass, field
from typing import Any

import torch

from spa.algo.losses import (
    PolicyLoss,
    clipped_absolute_error,
    cross_entropy,
    entropy_bonus,
    kl_penalty,
    policy_loss_named,
    value_loss,
)
from spa.config.schema import ActorConfig, CriticConfig, WorldLossConfig
from spa.models.forward import PLAIN, token_logprobs, token_values
from spa.recipes.ppo_models import keys_of
from spa.training.update import LossInfo
from spa.types import MiniBatch, SamplingParams


@dataclass(frozen=True, slots=True)
class ActorLoss:
    """The actor's loss: policy loss, plus world loss, replay loss and KL to the reference, minus
    the entropy bonus, each if configured.

    Log-probs are computed under the sampling distribution of the rollouts, `sampling`. `replayed`
    is True if the batch contains replayed examples.
    """

    cfg: ActorConfig
    sampling: SamplingParams = PLAIN
    replayed: bool = False
    policy: PolicyLoss = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "policy", policy_loss_named(self.cfg.policy_loss, keys_of(self.cfg))
        )

    def __call__(self, model: Any, batch: MiniBatch) -> tuple[torch.Tensor, LossInfo]:
        """Return the scalar loss of a micro-batch, and sums over tokens from which metrics are
        computed (see `LossFn`)."""
        cfg = self.cfg
        # One forward pass computes the log-probs of all tokens that carry a loss: the sampled
        # tokens (`mask`), and the tokens of world loss and replay loss (`ce_weights` above 0).
        logprobs, entropy = token_logprobs(
            model,
            batch.input_ids,
            batch.mask | (batch.ce_weights > 0),
            images=batch.images,
            with_entropy=True,
            entropy_grad=cfg.entropy_coeff > 0,
            sampling=self.sampling,
        )
        # A token with an `rl_weights` entry of 0 has no policy loss. It still counts in the
        # denominator, so that other tokens do not gain weight.
        weights = batch.token_weights * batch.rl_weights
        loss, sums = self.policy.compute(
            logprobs, batch.old_logprobs, batch.advantages, weights, cfg
        )
        info = {
            **sums,
            "tokens": (weights > 0).sum(),
            "sampled": batch.mask.sum(),
            "entropy": (entropy.detach() * batch.mask).sum(),
        }
        # `ce_weights` has world-loss weights in played rows and replay-loss weights in the other
        # rows, normalized separately. `played` [b, 1] tells them apart.
        played = batch.played[:, None]
        if cfg.world_loss.on:
            world = world_loss(cfg.world_loss, logprobs, batch.ce_weights * played)
            loss = loss + cfg.world_loss.coef * world
            info["world_loss"] = world.detach()
        if self.replayed:
            replay = cross_entropy(logprobs, batch.ce_weights * ~played)
            loss = loss + cfg.replay.coef * replay
            info["replay_loss"] = replay.detach()
        if cfg.entropy_coeff > 0:
            # `token_weights`, not `weights`: entropy is rewarded on every token of the mask.
            loss = loss - cfg.entropy_coeff * entropy_bonus(entropy, batch.token_weights)
        if cfg.use_kl_loss and batch.ref_logprobs is not None:
            kl = kl_penalty(logprobs, batch.ref_logprobs, cfg.kl_loss_type)
            loss = loss + cfg.kl_loss_coef * (batch.token_weights * kl).sum()
            info["kl_loss"] = (kl.detach() * batch.mask).sum()
        return loss, info


def world_loss(cfg: WorldLossConfig, logprobs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the scalar world-model loss of a micro-batch, a weighted sum over tokens. `weights`
    [b, A] are normalized over the whole mini-batch, and 0 for tokens without the loss."""
    if cfg.kind == "cross_entropy":
        return cross_entropy(logprobs, weights)
    return clipped_absolute_error(logprobs, weights, most=cfg.most)


@dataclass(frozen=True, slots=True)
class CriticLoss:
    """Squared error of the values, clipped around the old values if configured."""

    cfg: CriticConfig

    def __call__(self, model: Any, batch: MiniBatch) -> tuple[torch.Tensor, LossInfo]:
        """Return the scalar loss of a micro-batch, and sums over tokens from which metrics are
        computed (see `LossFn`)."""
        values = token_values(model, batch.input_ids, batch.mask, images=batch.images)
        old = batch.values if batch.values is not None else torch.zeros_like(values)
        clip = self.cfg.cliprange_value
        return value_loss(values, old, batch.returns, batch.token_weights, clip=clip)

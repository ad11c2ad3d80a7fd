"""What policy and critic are updated with: the losses of `spa.algo`, put together as the configuration asks."""

from typing import Any

import torch

from spa.algo.losses import entropy_bonus, kl_penalty, policy_loss_named, value_loss
from spa.config.schema import ActorConfig, CriticConfig
from spa.models.forward import PLAIN, token_logprobs, token_values
from spa.recipes.ppo_models import keys_of
from spa.training.update import LossFn, LossInfo
from spa.types import PPOBatch, SamplingParams


def actor_loss(cfg: ActorConfig, sampling: SamplingParams = PLAIN) -> LossFn:
    """Policy loss, minus the entropy bonus, plus KL to the reference if asked for; all of the policy that samples like
    `sampling`."""
    policy = policy_loss_named(cfg.policy_loss, keys_of(cfg))

    def loss_fn(model: Any, batch: PPOBatch, weights: torch.Tensor) -> tuple[torch.Tensor, LossInfo]:
        logprobs, entropy = token_logprobs(
            model,
            batch.input_ids,
            batch.mask,
            images=batch.images,
            with_entropy=True,
            entropy_grad=cfg.entropy_coeff > 0,
            sampling=sampling,
        )
        weighed = weights if batch.importance is None else weights * batch.importance
        loss, sums = policy.compute(logprobs, batch.old_logprobs, batch.advantages, weighed, cfg)
        info = {**sums, "tokens": (weights > 0).sum(), "entropy": (entropy.detach() * batch.mask).sum()}
        if cfg.entropy_coeff > 0:
            loss = loss - cfg.entropy_coeff * entropy_bonus(entropy, weights)
        if cfg.use_kl_loss and batch.ref_logprobs is not None:
            kl = kl_penalty(logprobs, batch.ref_logprobs, cfg.kl_loss_type)
            loss = loss + cfg.kl_loss_coef * (weights * kl).sum()
            info["kl_loss"] = (kl.detach() * batch.mask).sum()
        return loss, info

    return loss_fn


def critic_loss(cfg: CriticConfig) -> LossFn:
    """Squared error of the values, clipped around the old ones if asked for."""

    def loss_fn(model: Any, batch: PPOBatch, weights: torch.Tensor) -> tuple[torch.Tensor, LossInfo]:
        values = token_values(model, batch.input_ids, batch.mask, images=batch.images)
        old = batch.values if batch.values is not None else torch.zeros_like(values)
        return value_loss(values, old, batch.returns, weights, clip=cfg.cliprange_value)

    return loss_fn

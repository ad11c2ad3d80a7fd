"""What policy and critic are updated with: the losses of `spa.algo`, put together as the configuration asks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from spa.algo.losses import entropy_bonus, kl_penalty, policy_loss_named, value_loss
from spa.algo.world_losses import clipped_absolute_error, cross_entropy, focus_weights, uncertain_turns
from spa.config.schema import ActorConfig, CriticConfig, WorldLossConfig
from spa.models.forward import PLAIN, token_logprobs, token_values
from spa.prompts.template import ChatTemplate
from spa.recipes.ppo_models import keys_of
from spa.training.loss_masks import believed_states, shown_states
from spa.training.update import LossFn, LossInfo
from spa.types import Episode, PPOBatch, SamplingParams, ScoredBatch


def actor_loss(cfg: ActorConfig, sampling: SamplingParams = PLAIN) -> LossFn:
    """Policy loss, plus the losses on the world and on replayed rows, minus the entropy bonus, plus KL to the
    reference, each if asked for; all of the policy that samples like `sampling`."""
    policy = policy_loss_named(cfg.policy_loss, keys_of(cfg))

    def loss_fn(model: Any, batch: PPOBatch, weights: torch.Tensor) -> tuple[torch.Tensor, LossInfo]:
        scored = batch.mask
        for others in (batch.world, batch.replay):
            scored = scored if others is None else scored | (others > 0)
        logprobs, entropy = token_logprobs(
            model,
            batch.input_ids,
            scored,
            images=batch.images,
            with_entropy=True,
            entropy_grad=cfg.entropy_coeff > 0,
            sampling=sampling,
        )
        weighed = weights if batch.importance is None else weights * batch.importance
        loss, sums = policy.compute(logprobs, batch.old_logprobs, batch.advantages, weighed, cfg)
        info = {
            **sums,
            "tokens": (weighed > 0).sum(),
            "sampled": batch.mask.sum(),
            "entropy": (entropy.detach() * batch.mask).sum(),
        }
        if batch.world is not None:
            world = world_loss(cfg.world_loss, logprobs, batch.world)
            loss = loss + cfg.world_loss.coef * world
            info["world_loss"] = world.detach()
        if batch.replay is not None:
            replayed = cross_entropy(logprobs, batch.replay)
            loss = loss + cfg.replay.coef * replayed
            info["replay_loss"] = replayed.detach()
        if cfg.entropy_coeff > 0:
            loss = loss - cfg.entropy_coeff * entropy_bonus(entropy, weights)
        if cfg.use_kl_loss and batch.ref_logprobs is not None:
            kl = kl_penalty(logprobs, batch.ref_logprobs, cfg.kl_loss_type)
            loss = loss + cfg.kl_loss_coef * (weights * kl).sum()
            info["kl_loss"] = (kl.detach() * batch.mask).sum()
        return loss, info

    return loss_fn


def world_loss(cfg: WorldLossConfig, logprobs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The mean loss on the world's tokens, a scalar; `weights` [b, A] are those of the mini-batch."""
    if cfg.kind == "cross_entropy":
        return cross_entropy(logprobs, weights)
    return clipped_absolute_error(logprobs, weights, most=cfg.most)


def world_weights(cfg: WorldLossConfig, episodes: Sequence[Episode], template: ChatTemplate) -> list[np.ndarray] | None:
    """float32 [T] per episode: which tokens carry the loss on the world, and how much; None if none do."""
    if cfg.tokens == "none" or cfg.coef == 0:
        return None
    share = sum(not episode.success for episode in episodes) / len(episodes) if cfg.fade else 1.0
    if cfg.tokens == "shown_states":
        masks = [shown_states(episode, template) for episode in episodes]
    else:
        masks = [believed_states(episode, template, right=True) for episode in episodes]
    return [mask.astype(np.float32) * np.float32(share) for mask in masks]


def needs_entropies(cfg: ActorConfig) -> bool:
    """Whether the policy's entropies at the sampled tokens decide about weights."""
    return cfg.answer_focus.beta > 0 or (cfg.world_loss.tokens != "none" and cfg.world_loss.turns < 1)


def needs_answers(cfg: ActorConfig) -> bool:
    """Whether it matters which tokens are the answers'."""
    return needs_entropies(cfg) or cfg.answer_focus.alpha != 1


def weighed_by_uncertainty(cfg: ActorConfig, batch: ScoredBatch, entropies: torch.Tensor) -> ScoredBatch:
    """The batch with token weights that follow from the answers (ActFocus) and with the world's loss only after the
    turns whose answers were the least certain (PaW). `entropies` [B, A] are 0 where nothing asks for them."""
    if batch.answers is None:
        return batch
    focus, world, answers = cfg.answer_focus, batch.world, batch.answers & batch.mask
    if focus.alpha != 1 or focus.beta > 0:
        weights = focus_weights(batch.mask, answers, entropies, alpha=focus.alpha, beta=focus.beta)
        importance = weights if batch.importance is None else batch.importance * weights
        batch = replace(batch, importance=importance)
    if world is not None and cfg.world_loss.turns < 1:
        chosen = uncertain_turns(entropies, batch.turns, answers, share=cfg.world_loss.turns)
        batch = replace(batch, world=world * chosen)
    return batch


def critic_loss(cfg: CriticConfig) -> LossFn:
    """Squared error of the values, clipped around the old ones if asked for."""

    def loss_fn(model: Any, batch: PPOBatch, weights: torch.Tensor) -> tuple[torch.Tensor, LossInfo]:
        values = token_values(model, batch.input_ids, batch.mask, images=batch.images)
        old = batch.values if batch.values is not None else torch.zeros_like(values)
        return value_loss(values, old, batch.returns, weights, clip=cfg.cliprange_value)

    return loss_fn

"""The context that PPO methods receive besides the batch and the episodes, and the function that
applies all enabled methods."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from spa.config.schema import Config
from spa.plugins import defined_by_methods
from spa.prompts.template import ChatTemplate
from spa.types import Episode, Metrics, PPOBatch

Replayed = tuple[np.ndarray, np.ndarray]
"""int32 [t] token ids, and bool [t], True on the tokens that contribute to the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Inputs that methods need to change a PPO step, besides the batch and the episodes."""

    cfg: Config
    step: int  # from 1
    template: ChatTemplate
    # batch -> float32 [B, A], the policy's entropy in nats at each sampled token
    entropies: Callable[[PPOBatch], torch.Tensor]
    # (environment tag, state texts) -> the `TextEnv.state_value` of each state text
    state_values: Callable[[str, Collection[str]], dict[str, float]]
    stored: Sequence[Replayed]  # training sequences of stage 2; empty unless they are replayed
    metrics: Metrics  # metrics of the step; methods add theirs here


def examples_folder(cfg: Config) -> Path | None:
    """Return the folder of examples that an enabled method reads; None if no method reads one."""
    folders = (folder_of(cfg) for folder_of in defined_by_methods("stored_in").values())
    return next((folder for folder in folders if folder is not None), None)


def stored_sequences(cfg: Config, template: ChatTemplate) -> list[Replayed]:
    """Load the training sequences of stage 2 that enabled methods replay."""
    return [
        sequence
        for stored in defined_by_methods("stored").values()
        for sequence in stored(cfg, template)
    ]


def annotate_all(batch: PPOBatch, episodes: Sequence[Episode], context: Context) -> PPOBatch:
    """Apply all enabled methods to the batch.

    `episodes` are all episodes of the step, including failed and filtered ones. `batch.episodes`
    contains indices into them.
    """
    for annotate in defined_by_methods("annotate").values():
        batch = annotate(batch, episodes, context)
    if context.cfg.actor_rollout_ref.actor.world_loss.on:
        # Number of tokens with the world loss, relative to the tokens in the mask of the policy
        # loss.
        known = batch.ce_weights[batch.played] > 0
        context.metrics["rollout/world_tokens_ratio"] = float(
            known.sum() / batch.mask.sum().clamp(min=1)
        )
    return batch

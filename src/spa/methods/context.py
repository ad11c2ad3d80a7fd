"""What a method gets besides the batch and the episodes."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from spa.config.schema import Config
from spa.prompts.template import ChatTemplate
from spa.types import Episode, Metrics, PPOBatch

Replayed = tuple[np.ndarray, np.ndarray]
"""int32 [t] token ids, and bool [t]: which of them are learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The PPO step that a method changes.

    step: its number, from 1. entropies: batch -> float32 [B, A], the policy's entropy in nats at
    each sampled token. state_values: (environment tag, state texts) -> the environment's value of
    each. stored: training sequences of stage 2, if they are replayed. metrics: the step's, to which
    a method adds its own.
    """

    cfg: Config
    step: int
    template: ChatTemplate
    entropies: Callable[[PPOBatch], torch.Tensor]
    state_values: Callable[[str, Collection[str]], dict[str, float]]
    stored: Sequence[Replayed]
    metrics: Metrics


Annotate = Callable[[PPOBatch, Sequence[Episode], Context], PPOBatch]

"""Scoring and updating: the two places where training touches a model."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from spa.algo.losses import LossAggMode, loss_units, loss_weights
from spa.errors import TrainingError
from spa.models.forward import micro_batches, token_logprobs, token_values
from spa.training.batch import select, to_device
from spa.training.optim import Optimizer
from spa.types import EpisodeBatch, Metrics, PPOBatch

LossInfo = Mapping[str, torch.Tensor]
LossFn = Callable[[Any, PPOBatch, torch.Tensor], tuple[torch.Tensor, LossInfo]]
"""(model, micro-batch, weights [b, A]) -> (loss, sums over tokens to report as means, "tokens" among them). Weights
belong to the whole mini-batch."""

MAX_BAD_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A frozen model, and the precision that it computes in."""

    model: Any
    autocast: torch.dtype | None = None


@dataclass(slots=True, kw_only=True)
class Trainable:
    """A model with its optimiser. Steps with a non-finite gradient are skipped and counted."""

    model: Any
    optimizer: Optimizer
    grad_clip: float = 1.0
    autocast: torch.dtype | None = None
    bad_steps: int = 0

    def step(self) -> Metrics:
        """Clip, step, forget the gradient. Raises TrainingError after several non-finite gradients in a row."""
        norm = float(nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.requires_grad], self.grad_clip))
        if math.isfinite(norm):
            self.bad_steps = 0
            self.optimizer.step()
        else:
            self.bad_steps += 1
        self.optimizer.zero_grad()
        if self.bad_steps >= MAX_BAD_STEPS:
            raise TrainingError(
                f"the gradient was not finite {self.bad_steps} steps in a row. Lower the learning rate, or train in "
                "float32; the last saved checkpoint is unharmed."
            )
        return {"grad_norm": norm if math.isfinite(norm) else -1.0, "skipped": float(not math.isfinite(norm))}


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatching:
    """How a batch is cut for the forward pass; changes memory, never results."""

    rows: int | None = None
    max_tokens: int | None = None

    def split(self, lengths: torch.Tensor) -> Iterator[torch.Tensor]:
        """Row indices of each micro-batch."""
        return micro_batches(lengths, rows=self.rows, max_tokens=self.max_tokens)


def score_logprobs(
    part: Scorer | Trainable, batch: EpisodeBatch, micro: MicroBatching, device: torch.device
) -> torch.Tensor:
    """float32 [B, A] on the CPU: log-probs of the sampled tokens under the policy."""
    return _score(part, batch, micro, device, lambda model, b: token_logprobs(model, b.input_ids, b.mask)[0])


def score_values(
    part: Scorer | Trainable, batch: EpisodeBatch, micro: MicroBatching, device: torch.device
) -> torch.Tensor:
    """float32 [B, A] on the CPU: the critic's values before each sampled token."""
    return _score(part, batch, micro, device, lambda model, b: token_values(model, b.input_ids, b.mask))


def _score(
    scorer: Scorer | Trainable,
    batch: EpisodeBatch,
    micro: MicroBatching,
    device: torch.device,
    forward: Callable[[Any, EpisodeBatch], torch.Tensor],
) -> torch.Tensor:
    out = torch.zeros(batch.mask.shape, dtype=torch.float32)
    scorer.model.eval()
    with torch.no_grad(), torch.autocast(device.type, dtype=scorer.autocast, enabled=scorer.autocast is not None):
        for rows in micro.split(batch.lengths):
            part = to_device(select(batch, rows), device)
            values = forward(scorer.model, part).float().cpu()
            out[rows, : values.shape[1]] = values
    return out


def update(
    part: Trainable,
    batch: PPOBatch,
    loss_fn: LossFn,
    *,
    mini_batches: list[list[torch.Tensor]],
    micro: MicroBatching,
    loss_agg_mode: LossAggMode,
    horizon: int,
    device: torch.device,
) -> Metrics:
    """Optimiser steps over `mini_batches`: per epoch, the row indices of each mini-batch.

    The loss is a mean over the whole mini-batch, so the gradient does not depend on how it is cut into micro-batches.
    """
    sums: dict[str, float] = defaultdict(float)
    norms: list[float] = []
    loss_sum = skipped = 0.0
    part.model.train()
    for epoch in mini_batches:
        for rows in epoch:
            mini = select(batch, rows)
            weights = loss_weights(mini.mask, loss_agg_mode, loss_units(mini.mask, loss_agg_mode), horizon=horizon)
            for picked in micro.split(mini.lengths):
                small = to_device(select(mini, picked), device)
                small_weights = weights[picked][:, : small.mask.shape[1]].to(device)
                with torch.autocast(device.type, dtype=part.autocast, enabled=part.autocast is not None):
                    loss, info = loss_fn(part.model, small, small_weights)
                loss.backward()
                loss_sum += loss.item()
                for name, value in info.items():
                    sums[name] += float(value)
            result = part.step()
            norms.append(result["grad_norm"])
            skipped += result["skipped"]
    steps, tokens = max(1, len(norms)), max(1.0, sums.pop("tokens", 0.0))
    metrics = {name: value / tokens for name, value in sums.items()}
    return {**metrics, "loss": loss_sum / steps, "grad_norm": sum(norms) / steps, "skipped": skipped}


def plan_mini_batches(
    rows: int, *, size: int | None, count: int | None, epochs: int, shuffle: bool, generator: torch.Generator
) -> list[list[torch.Tensor]]:
    """Per epoch, the row indices of each mini-batch: `count` of nearly equal size, or as many of `size` rows as fit
    (the last may be smaller). Rows are dealt in a random order; with `shuffle` it is a new one in every epoch."""
    order = torch.randperm(rows, generator=generator)
    plan = []
    for epoch in range(epochs):
        if shuffle and epoch > 0:
            order = torch.randperm(rows, generator=generator)
        plan.append(list(torch.tensor_split(order, min(count, rows)) if count else order.split(size or rows)))
    return plan

"""Scoring and updating: the two places where training touches a model."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch
from torch import nn

from spa import heartbeat
from spa.algo.losses import LossAggMode, loss_units, loss_weights
from spa.distributed.replicas import Replica
from spa.distributed.shards import norm_of
from spa.errors import TrainingError
from spa.models.forward import packs_rows, switch_off_dropout, token_logprobs, token_values
from spa.models.lora import adapters_off
from spa.training.batch import select, to_device
from spa.training.oom_retry import MicroBatching, oom_retry
from spa.training.optim import Optimizer
from spa.types import EpisodeBatch, Metrics, PPOBatch

LossInfo = Mapping[str, torch.Tensor]
LossFn = Callable[[Any, PPOBatch, torch.Tensor], tuple[torch.Tensor, LossInfo]]
"""(model, micro-batch, weights [b, A]) -> (loss, sums over tokens to report as means, "tokens" among them). Weights
belong to the whole mini-batch."""

MAX_BAD_STEPS = 3


@dataclass(slots=True, kw_only=True)
class Scorer:
    """A frozen model, and the precision that it computes in. `halvings`: of its micro-batches, to fit into memory;
    `without_adapters`: score with LoRA adapters switched off, which makes a policy its own reference; `held`: how the
    ranks hold the model, by default this process alone."""

    model: Any
    held: InitVar[Replica | None] = None
    autocast: torch.dtype | None = None
    halvings: int = 0
    without_adapters: bool = False
    replica: Replica = field(init=False)

    def __post_init__(self, held: Replica | None) -> None:
        self.replica = held or Replica(self.model)


@dataclass(slots=True, kw_only=True)
class Trainable:
    """A model with its optimiser. Steps with a non-finite loss or gradient are skipped and counted. `held`: how the
    ranks hold the model, by default this process alone."""

    model: Any
    optimizer: Optimizer
    held: InitVar[Replica | None] = None
    grad_clip: float = 1.0
    autocast: torch.dtype | None = None
    bad_steps: int = 0
    halvings: int = 0
    replica: Replica = field(init=False)

    def __post_init__(self, held: Replica | None) -> None:
        self.replica = held or Replica(self.model)

    def full_model(self) -> Any:
        """The model with all its current weights, for engines and checkpoints. Collective: every rank calls it."""
        return self.replica.full_model()

    def state(self) -> dict[str, Any]:
        """The optimiser's state in whole tensors; only rank 0 gets them. Collective: every rank calls it."""
        return self.replica.gathered(self.optimizer.state_dict())

    def step(self, loss: float) -> Metrics:
        """Clip, step, forget the gradient of `loss`, which is the sum over all ranks, so that all decide the same. A
        non-finite loss counts though its gradient may be finite (of what was clipped or masked). Raises TrainingError
        after several steps in a row that were not finite."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        norm = norm_of(nn.utils.clip_grad_norm_(trained, self.grad_clip))
        finite = math.isfinite(norm) and math.isfinite(loss)
        if finite:
            self.bad_steps = 0
            self.optimizer.step()
        else:
            self.bad_steps += 1
        self.optimizer.zero_grad()
        if self.bad_steps >= MAX_BAD_STEPS:
            raise TrainingError(
                f"loss or gradient was not finite {self.bad_steps} steps in a row. Lower the learning rate, or train "
                "in float32; the last saved checkpoint is unharmed."
            )
        return {"grad_norm": norm if math.isfinite(norm) else -1.0, "skipped": float(not finite)}


def score_logprobs(
    part: Scorer | Trainable, batch: EpisodeBatch, micro: MicroBatching, device: torch.device
) -> torch.Tensor:
    """float32 [B, A] on the CPU: log-probs of the sampled tokens under the policy."""
    return _score(
        part, batch, micro, device, lambda model, b: token_logprobs(model, b.input_ids, b.mask, images=b.images)[0]
    )


def score_values(
    part: Scorer | Trainable, batch: EpisodeBatch, micro: MicroBatching, device: torch.device
) -> torch.Tensor:
    """float32 [B, A] on the CPU: the critic's values before each sampled token."""
    return _score(
        part, batch, micro, device, lambda model, b: token_values(model, b.input_ids, b.mask, images=b.images)
    )


def _score(
    scorer: Scorer | Trainable,
    batch: EpisodeBatch,
    micro: MicroBatching,
    device: torch.device,
    forward: Callable[[Any, EpisodeBatch], torch.Tensor],
) -> torch.Tensor:
    replica = scorer.replica
    mine, dummy = replica.world.deal(batch.lengths), batch.lengths.argmin()[None]

    def work(cut: list[torch.Tensor]) -> torch.Tensor:
        out = torch.zeros(batch.mask.shape, dtype=torch.float32)
        for rows, counts in replica.passes([mine[picked] for picked in cut], dummy, backward=False):
            heartbeat.beat()
            values = replica.run(forward, to_device(select(batch, rows), device)).float().cpu()
            if counts:
                out[rows, : values.shape[1]] = values
        return out

    scorer.model.eval()
    off = isinstance(scorer, Scorer) and scorer.without_adapters
    with (
        adapters_off(scorer.model) if off else nullcontext(),
        torch.no_grad(),
        torch.autocast(device.type, dtype=scorer.autocast, enabled=scorer.autocast is not None),
    ):
        scores = oom_retry(
            scorer, micro, batch.lengths[mine], work, packs_rows(scorer.model), repeatable=not replica.in_step
        )
    return replica.world.all_reduce_sum(scores)


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
    Dropout is off: ratios and clipped values compare with scores that were taken without it.
    """
    sums: dict[str, float] = defaultdict(float)
    norms: list[float] = []
    loss_sum = skipped = 0.0
    part.model.train()
    switch_off_dropout(part.model)
    for epoch in mini_batches:
        for rows in epoch:
            mini = select(batch, rows)
            mine = part.replica.world.deal(mini.lengths)
            weights = loss_weights(mini.mask, loss_agg_mode, loss_units(mini.mask, loss_agg_mode), horizon=horizon)

            def work(
                cut: list[torch.Tensor],
                mini: PPOBatch = mini,
                weights: torch.Tensor = weights,
                mine: torch.Tensor = mine,
            ) -> dict[str, float]:
                return _accumulate(part, mini, weights, [mine[picked] for picked in cut], loss_fn, device)

            alone = part.replica.world.size == 1
            info = oom_retry(part, micro, mini.lengths[mine], work, packs_rows(part.model), repeatable=alone)
            info = part.replica.world.all_reduce_sums(info)
            loss = info.pop("loss")
            loss_sum += loss
            for name, value in info.items():
                sums[name] += value
            result = part.step(loss)
            norms.append(result["grad_norm"])
            skipped += result["skipped"]
    steps, tokens = max(1, len(norms)), max(1.0, sums.pop("tokens", 0.0))
    metrics = {name: value / tokens for name, value in sums.items()}
    return {**metrics, "loss": loss_sum / steps, "grad_norm": sum(norms) / steps, "skipped": skipped}


def _accumulate(
    part: Trainable,
    mini: PPOBatch,
    weights: torch.Tensor,
    cut: list[torch.Tensor],
    loss_fn: LossFn,
    device: torch.device,
) -> dict[str, float]:
    """Gradients of this rank's rows of a mini-batch, micro-batch by micro-batch; returns their part of the loss and of
    the sums to report."""
    part.optimizer.zero_grad()  # of an attempt that ran out of memory
    sums = defaultdict[str, float](float)
    passes = list(part.replica.passes(cut, mini.lengths.argmin()[None], backward=True))
    for number, (rows, counts) in enumerate(passes, start=1):
        heartbeat.beat()
        small = to_device(select(mini, rows), device)
        small_weights = weights[rows][:, : small.mask.shape[1]].to(device) * counts
        with torch.autocast(device.type, dtype=part.autocast, enabled=part.autocast is not None):
            loss, info = part.replica.run(loss_fn, small, small_weights, last=number == len(passes))
        # The loss is a sum over ranks; gradients are averaged over them.
        (loss * part.replica.world.size).backward()
        for name, value in {"loss": loss.detach(), **info}.items():
            sums[name] += float(value) * counts
    return sums


def plan_mini_batches(
    rows: int, *, size: int | None, count: int | None, epochs: int, shuffle: bool, generator: torch.Generator
) -> list[list[torch.Tensor]]:
    """Per epoch, the row indices of each mini-batch, all of nearly equal size: `count` of them, or as many as it takes
    for none to have more than `size` rows. A rest of a few rows would get an optimiser step as large as the others'.
    Rows are dealt in a random order; with `shuffle` it is a new one in every epoch."""
    order = torch.randperm(rows, generator=generator)
    parts = min(count, rows) if count else -(-rows // (size or rows))
    plan = []
    for epoch in range(epochs):
        if shuffle and epoch > 0:
            order = torch.randperm(rows, generator=generator)
        plan.append(list(torch.tensor_split(order, parts)))
    return plan

"""Scoring and updating: the two places where training touches a model."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import InitVar, dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from spa.algo.losses import LossAggMode, loss_units, loss_weights
from spa.algo.world_losses import auxiliary_weights
from spa.distributed.replicas import Replica
from spa.distributed.shards import norm_of
from spa.errors import TrainingError
from spa.models.forward import PLAIN, packs_rows, switch_off_dropout, token_logprobs, token_values
from spa.models.lora import adapters_off
from spa.run import watchdog
from spa.training.batch import select, to_device
from spa.training.oom_retry import MicroBatching, oom_retry
from spa.training.optim import Optimizer
from spa.types import EpisodeBatch, Metrics, PPOBatch, SamplingParams

LossInfo = Mapping[str, torch.Tensor]
LossFn = Callable[[Any, PPOBatch, torch.Tensor], tuple[torch.Tensor, LossInfo]]
"""(model, micro-batch, weights [b, A]) -> (loss, sums over tokens to report as means, and their number as "tokens").
Weights belong to the whole mini-batch. `OVER_SAMPLED` are sums over the tokens counted in "sampled"."""
Compute = Callable[..., tuple[torch.Tensor, LossInfo]]
"""(model, *, rows) -> (part of the loss, parts of the sums to report)."""
Result = TypeVar("Result")

MAX_BAD_STEPS = 3
OVER_SAMPLED = ("entropy", "kl_loss")
"""What is summed over all sampled tokens, those without a weight in the policy loss too."""


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


def train_step(
    part: Trainable, lengths: torch.Tensor, micro: MicroBatching, device: torch.device, compute: Compute
) -> tuple[dict[str, float], Metrics]:
    """One optimiser step on sequences of these `lengths` (int64 [B]), however they are cut and shared among ranks.

    `compute(model, rows)` gives the rows' part of the loss, which is a sum over the whole batch, and of the sums to
    report. Returns the sums of all ranks, the loss among them, and what `Trainable.step` says.
    """
    replica = part.replica
    mine, dummy = replica.world.deal(lengths), lengths.argmin()[None]
    sums: dict[str, float] = {}
    alone = replica.world.size == 1
    for attempt in oom_retry(part, micro, lengths[mine], packed=packs_rows(part.model), repeatable=alone):
        part.optimizer.zero_grad()  # of an attempt that ran out of memory
        sums, loss = defaultdict[str, float](float), None  # lets go of a graph that was too large
        with attempt as cut:
            passes = list(replica.passes([mine[picked] for picked in cut], dummy, backward=True))
            for number, (rows, counts) in enumerate(passes, start=1):
                watchdog.beat()
                with torch.autocast(device.type, dtype=part.autocast, enabled=part.autocast is not None):
                    loss, info = replica.forward(partial(compute, rows=rows), last=number == len(passes))
                # The loss is a sum over ranks; gradients are averaged over them.
                (loss * (counts * replica.world.size)).backward()
                for name, value in {"loss": loss, **info}.items():
                    sums[name] += float(value.detach()) * counts
    sums = replica.world.all_reduce_sums(sums)
    return sums, part.step(sums["loss"])


def forward_passes(
    part: Scorer | Trainable,
    lengths: torch.Tensor,
    micro: MicroBatching,
    device: torch.device,
    compute: Callable[..., Result],
) -> list[tuple[torch.Tensor, Result]]:
    """`compute(model, rows)` without gradients and without dropout, on this rank's share of sequences of these
    `lengths`; returns the rows of each pass with its result."""
    replica, off = part.replica, isinstance(part, Scorer) and part.without_adapters
    mine, dummy = replica.world.deal(lengths), lengths.argmin()[None]
    part.model.eval()
    found: list[tuple[torch.Tensor, Result]] = []
    with (
        adapters_off(part.model) if off else nullcontext(),
        torch.no_grad(),
        torch.autocast(device.type, dtype=part.autocast, enabled=part.autocast is not None),
    ):
        packed, repeatable = packs_rows(part.model), not replica.in_step
        for attempt in oom_retry(part, micro, lengths[mine], packed=packed, repeatable=repeatable):
            found = []
            with attempt as cut:
                for rows, counts in replica.passes([mine[picked] for picked in cut], dummy, backward=False):
                    watchdog.beat()
                    result = replica.forward(partial(compute, rows=rows))
                    if counts:
                        found.append((rows, result))
    return found


def score_logprobs(
    part: Scorer | Trainable,
    batch: EpisodeBatch,
    micro: MicroBatching,
    device: torch.device,
    sampling: SamplingParams = PLAIN,
) -> torch.Tensor:
    """float32 [B, A] on the CPU: log-probs of the sampled tokens under the policy that samples like this."""

    def logprobs(model: Any, small: EpisodeBatch) -> torch.Tensor:
        return token_logprobs(model, small.input_ids, small.mask, images=small.images, sampling=sampling)[0]

    return _score(part, batch, micro, device, logprobs)


def score_entropies(
    part: Scorer | Trainable,
    batch: EpisodeBatch,
    micro: MicroBatching,
    device: torch.device,
    sampling: SamplingParams = PLAIN,
) -> torch.Tensor:
    """float32 [B, A] on the CPU: the entropy, in nats, at each sampled token of the policy as `sampling` draws from
    it."""

    def entropies(model: Any, small: EpisodeBatch) -> torch.Tensor:
        scored = token_logprobs(
            model, small.input_ids, small.mask, images=small.images, with_entropy=True, sampling=sampling
        )
        return scored[1]

    return _score(part, batch, micro, device, entropies)


def score_values(
    part: Scorer | Trainable, batch: EpisodeBatch, micro: MicroBatching, device: torch.device
) -> torch.Tensor:
    """float32 [B, A] on the CPU: the critic's values before each sampled token."""

    def values(model: Any, small: EpisodeBatch) -> torch.Tensor:
        return token_values(model, small.input_ids, small.mask, images=small.images)

    return _score(part, batch, micro, device, values)


def score_last_values(
    part: Scorer | Trainable, batch: EpisodeBatch, micro: MicroBatching, device: torch.device
) -> torch.Tensor:
    """float32 [B] on the CPU: the critic's values after each row's last token."""
    longer: dict[str, Any] = {f.name: getattr(batch, f.name) for f in fields(EpisodeBatch)}
    for name, value in longer.items():
        if isinstance(value, torch.Tensor) and value.ndim == 2:
            longer[name] = nn.functional.pad(value, (0, 1))
    ends = nn.functional.one_hot(batch.lengths - 1, batch.input_ids.shape[1]).bool()  # of a token that follows
    longer |= {"mask": ends, "lengths": batch.lengths + 1}
    return score_values(part, EpisodeBatch(**longer), micro, device).sum(dim=1)


def _score(
    scorer: Scorer | Trainable,
    batch: EpisodeBatch,
    micro: MicroBatching,
    device: torch.device,
    forward: Callable[[Any, EpisodeBatch], torch.Tensor],
) -> torch.Tensor:
    def compute(model: Any, rows: torch.Tensor) -> torch.Tensor:
        return forward(model, to_device(select(batch, rows), device)).float().cpu()

    out = torch.zeros(batch.mask.shape, dtype=torch.float32)
    for rows, values in forward_passes(scorer, batch.lengths, micro, device, compute):
        out[rows, : values.shape[1]] = values
    scores = scorer.replica.world.all_reduce_sum(out)
    if not torch.isfinite(scores).all():
        raise TrainingError(
            f"the {type(scorer.model).__name__} gives scores that are not finite, before anything is "
            "updated: it overflows in this precision. Compute in float32 or bfloat16 (actor_rollout_ref.model.dtype, "
            "critic.model.dtype); the last saved checkpoint is unharmed."
        )
    return scores


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
    steps: list[Metrics] = []
    part.model.train()
    switch_off_dropout(part.model)
    for picked in (picked for epoch in mini_batches for picked in epoch):
        mini = select(batch, picked)
        if mini.world is not None:
            mini = replace(mini, world=auxiliary_weights(mini.world))
        if mini.replay is not None:
            mini = replace(mini, replay=auxiliary_weights(mini.replay))
        weights = loss_weights(mini.mask, loss_agg_mode, loss_units(mini.mask, loss_agg_mode), horizon=horizon)

        def compute(
            model: Any, rows: torch.Tensor, mini: PPOBatch = mini, weights: torch.Tensor = weights
        ) -> tuple[torch.Tensor, LossInfo]:
            small = to_device(select(mini, rows), device)
            return loss_fn(model, small, weights[rows][:, : small.mask.shape[1]].to(device))

        found, result = train_step(part, mini.lengths, micro, device, compute)
        steps.append(result)
        for name, value in found.items():
            sums[name] += value
    count, loss, tokens = max(1, len(steps)), sums.pop("loss", 0.0), max(1.0, sums.pop("tokens", 0.0))
    sampled = max(1.0, sums.pop("sampled", tokens))
    means = {name: sums.pop(name) / count for name in ("world_loss", "replay_loss") if name in sums}
    means |= {name: sums.pop(name) / sampled for name in OVER_SAMPLED if name in sums}
    return {
        **{name: value / tokens for name, value in sums.items()},
        **means,
        "loss": loss / count,
        "grad_norm": sum(step["grad_norm"] for step in steps) / count,
        "skipped": sum(step["skipped"] for step in steps),
    }


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

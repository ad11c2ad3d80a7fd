"""Score tokens with models, and update models. After an out-of-memory error, the same work is
repeated with micro-batches of half the size."""

import gc
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import InitVar, dataclass, field, fields
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from spa.algo.losses import LossAggMode, auxiliary_weights, loss_units, loss_weights
from spa.distributed.replicas import Replica, norm_of
from spa.errors import TrainingError
from spa.models.forward import (
    PLAIN,
    micro_batches,
    packs_rows,
    switch_off_dropout,
    token_logprobs,
    token_values,
)
from spa.models.lora import adapters_off
from spa.run import watchdog
from spa.training.batch import Batch, select, to_device
from spa.training.optim import Optimizer
from spa.types import Metrics, MiniBatch, PPOBatch, SamplingParams, TokenBatch

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatching:
    """Limits for splitting a batch into micro-batches. They affect memory use, never results."""

    rows: int | None = None
    max_tokens: int | None = None

    def split(
        self, lengths: torch.Tensor, *, micro_batch_shrink: int = 0, packed: bool = False
    ) -> Iterator[torch.Tensor]:
        """Yield the row indices of each micro-batch, with both limits halved `micro_batch_shrink`
        times."""
        rows = self.rows or len(lengths)
        tokens = None if self.max_tokens is None else max(1, self.max_tokens >> micro_batch_shrink)
        return micro_batches(
            lengths, rows=max(1, rows >> micro_batch_shrink), max_tokens=tokens, packed=packed
        )


class Halving(Protocol):
    """An object that records how often its micro-batches were halved."""

    micro_batch_shrink: int


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the memory of a GPU or of the machine was exhausted."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # PyTorch's allocator for CPUs raises a plain RuntimeError.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


class Attempt:
    """Context manager for one attempt at a piece of work. `with attempt as cut` binds `cut` to the
    micro-batches, each a tensor of row indices. An out-of-memory error inside the block is caught,
    and its message is stored in `reason`."""

    def __init__(self, cut: list[torch.Tensor]) -> None:
        self.cut = cut
        self.reason = ""

    def __enter__(self) -> list[torch.Tensor]:
        return self.cut

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        if error is None or not is_out_of_memory(error):
            return False
        self.reason = str(error).splitlines()[0] if str(error) else "out of memory"
        return True


def oom_retry(
    part: Halving,
    micro: MicroBatching,
    lengths: torch.Tensor,
    *,
    packed: bool,
    repeatable: bool = True,
) -> Iterator[Attempt]:
    """Yield attempts at a piece of work on sequences of these `lengths`, until one fits into
    memory:

        for attempt in oom_retry(...):
            with attempt as cut:
                ...  # start from scratch: discard the results of an aborted attempt

    If memory runs out, the next attempt and all later work use micro-batches of half the size.
    Raises TrainingError if a single row does not fit, or if the work is not `repeatable`, that is,
    if other ranks wait for this rank during the work.
    """
    while True:
        attempt = Attempt(
            list(micro.split(lengths, micro_batch_shrink=part.micro_batch_shrink, packed=packed))
        )
        yield attempt
        if not attempt.reason:
            return
        # Free the activations here: inside the block, the traceback still references them.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        largest = max(len(rows) for rows in attempt.cut)
        # Ranks run collectives during the work, so one rank cannot restart it alone.
        if not repeatable:
            raise TrainingError(
                f"Out of memory with {largest} examples per micro-batch ({attempt.reason}). "
                "With several ranks, spa cannot shrink the micro-batch. Lower "
                "micro_batch_size_per_gpu or ppo_max_token_len_per_gpu, then repeat the "
                "same command."
            )
        if largest == 1:
            raise TrainingError(
                f"Out of memory with one sequence of {int(lengths.max())} tokens "
                f"({attempt.reason}). Turn on enable_gradient_checkpointing, train LoRA "
                "adapters (lora.rank=64), or use shorter episodes or a smaller model. `spa "
                "doctor --fit CONFIG` estimates the memory needed."
            )
        # Stored on `part`, so that the next batch starts with a size that fits.
        part.micro_batch_shrink += 1
        log.warning(
            "Out of memory with %d examples per micro-batch; spa halves the micro-batch and "
            "tries again (%s)",
            largest,
            attempt.reason,
        )


LossInfo = Mapping[str, torch.Tensor]
LossFn = Callable[[Any, Batch], tuple[torch.Tensor, LossInfo]]
"""Function (model, micro-batch) -> (loss, info). `info` has sums over tokens, which are reported as
means, and the number of tokens as "tokens". The keys in `OVER_SAMPLED` are divided by "sampled",
the number of sampled tokens; the keys in `OVER_MINI_BATCHES` are averaged over mini-batches."""
Result = TypeVar("Result")

MAX_BAD_STEPS = 3
OVER_SAMPLED = ("entropy", "kl_loss")
"""Metrics that are sums over all sampled tokens, including tokens without weight in the policy
loss."""
OVER_MINI_BATCHES = ("world_loss", "replay_loss")
"""Losses with their own denominators, averaged over mini-batches."""


@dataclass(slots=True, kw_only=True)
class Scorer:
    """A frozen model that scores tokens.

    `parallel` is the model's replica on this rank; by default, only this process has the model.
    `autocast` is the precision of forward passes. `micro_batch_shrink` is the number of times that
    micro-batches were halved to fit into memory. With `without_adapters`, LoRA adapters are
    switched off, so that a policy can be its own reference.
    """

    model: Any
    parallel: InitVar[Replica | None] = None
    autocast: torch.dtype | None = None
    micro_batch_shrink: int = 0
    without_adapters: bool = False
    replica: Replica = field(init=False)

    def __post_init__(self, parallel: Replica | None) -> None:
        self.replica = parallel or Replica(self.model)


@dataclass(slots=True, kw_only=True)
class Trainable:
    """A model with its optimizer. Steps with a non-finite loss or gradient are skipped, and
    `bad_steps` counts consecutive skipped steps. `parallel` is the model's replica on this rank; by
    default, only this process has the model."""

    model: Any
    optimizer: Optimizer
    parallel: InitVar[Replica | None] = None
    grad_clip: float = 1.0
    autocast: torch.dtype | None = None
    bad_steps: int = 0
    micro_batch_shrink: int = 0
    replica: Replica = field(init=False)

    def __post_init__(self, parallel: Replica | None) -> None:
        self.replica = parallel or Replica(self.model)

    def full_model(self) -> Any:
        """Return the model with its full current weights, for engines and checkpoints. Collective:
        every rank must call it."""
        return self.replica.full_model()

    def state(self) -> dict[str, Any]:
        """Return the optimizer's state with full tensors, which only rank 0 gets. Collective: every
        rank must call it."""
        return self.replica.gathered(self.optimizer.state_dict())

    def step(self, loss: float) -> Metrics:
        """Clip the gradient, take an optimizer step, and drop the gradient. The step is skipped if
        the loss or the gradient is not finite.

        `loss` is the sum over all ranks, so that all ranks make the same decision. It is checked in
        addition to the gradient, because a non-finite loss can have a finite gradient if its tokens
        are clipped or masked. Raises TrainingError after `MAX_BAD_STEPS` consecutive skipped steps.
        """
        trained = [p for p in self.model.parameters() if p.requires_grad]
        # The total norm over all shards, before clipping.
        norm = norm_of(nn.utils.clip_grad_norm_(trained, self.grad_clip))
        finite = math.isfinite(norm) and math.isfinite(loss)
        if finite:
            self.bad_steps = 0
            self.optimizer.step()
        else:
            self.bad_steps += 1
        # Gradients are also dropped after a skipped step, so that they do not reach the next one.
        self.optimizer.zero_grad()
        if self.bad_steps >= MAX_BAD_STEPS:
            raise TrainingError(
                f"The loss or the gradient was NaN or infinite in {self.bad_steps} "
                "consecutive steps. Lower the learning rate, or train in float32; the last "
                "saved checkpoint is intact."
            )
        return {
            "grad_norm": norm if math.isfinite(norm) else -1.0,
            "nonfinite_steps": float(not finite),
        }


def update(
    part: Trainable,
    mini_batches: Iterable[Batch],
    loss_fn: LossFn[Batch],
    micro: MicroBatching,
    device: torch.device,
) -> Metrics:
    """Take one optimizer step per mini-batch. Returns means over tokens and steps, and the learning
    rate.

    `loss_fn(model, micro_batch)` returns the micro-batch's contribution to a loss that is a sum
    over the whole mini-batch. Therefore the gradient does not depend on the division of the
    mini-batch into micro-batches and ranks. Dropout is off, because PPO compares new log-probs and
    values with old ones that were computed without dropout, and because SFT should be reproducible.
    """
    replica = part.replica
    world = replica.world
    totals: dict[str, float] = defaultdict(float)
    steps: list[Metrics] = []
    # Gradient checkpointing works in training mode only; dropout is switched off separately.
    part.model.train()
    switch_off_dropout(part.model)
    packed = packs_rows(part.model)
    for mini in mini_batches:
        mine = world.deal(mini.lengths)
        # The shortest row, for extra passes that keep the ranks in step.
        dummy = mini.lengths.argmin()[None]
        sums: dict[str, float] = {}
        # Attempts after the first use smaller micro-batches, because memory ran out.
        for attempt in oom_retry(
            part, micro, mini.lengths[mine], packed=packed, repeatable=world.size == 1
        ):
            # An aborted attempt may have left the gradients of some of its rows.
            part.optimizer.zero_grad()
            sums = defaultdict(float)
            loss = None  # free the graph of an aborted attempt
            with attempt as cut:
                passes = list(
                    replica.passes([mine[picked] for picked in cut], dummy, backward=True)
                )
                for number, (rows, counts) in enumerate(passes, start=1):
                    watchdog.beat()
                    micro_batch = to_device(select(mini, rows), device)
                    with torch.autocast(
                        device.type, dtype=part.autocast, enabled=part.autocast is not None
                    ):
                        loss, info = replica.forward(
                            loss_fn, micro_batch, last=number == len(passes)
                        )
                    # DDP and FSDP average gradients over the ranks, but the loss is a sum over all
                    # ranks.
                    (loss * (counts * world.size)).backward()
                    for name, value in {"loss": loss, **info}.items():
                        sums[name] += float(value.detach()) * counts
        sums = world.all_reduce_sums(sums)
        steps.append(part.step(sums["loss"]))
        for name, value in sums.items():
            totals[name] += value
    return {**_means(totals, len(steps)), **_step_metrics(steps), "lr": part.optimizer.lr}


def _means(totals: Mapping[str, float], steps: int) -> Metrics:
    """Convert sums to means over tokens, sampled tokens or mini-batches, depending on the
    metric."""
    count = max(1, steps)
    tokens = max(1.0, totals.get("tokens", 0.0))
    sampled = max(1.0, totals.get("sampled", tokens))
    units = {name: float(count) for name in ("loss", *OVER_MINI_BATCHES)} | dict.fromkeys(
        OVER_SAMPLED, sampled
    )
    return {
        name: total / units.get(name, tokens)
        for name, total in totals.items()
        if name not in ("tokens", "sampled")
    }


def _step_metrics(steps: Sequence[Metrics]) -> Metrics:
    # A non-finite gradient has the norm -1, which must not enter the mean.
    norms = [step["grad_norm"] for step in steps if step["grad_norm"] >= 0]
    return {
        "grad_norm": sum(norms) / len(norms) if norms else -1.0,
        "nonfinite_steps": sum(step["nonfinite_steps"] for step in steps),
    }


def mini_batch(
    batch: PPOBatch, rows: torch.Tensor, mode: LossAggMode, *, horizon: int | None = None
) -> MiniBatch:
    """Select the rows of one optimizer step, and normalize their loss weights over the whole
    mini-batch. The policy loss, the cross-entropy on played episodes and the cross-entropy on
    replayed examples have separate denominators."""
    mini = select(batch, rows)
    played = mini.played[:, None]
    known = torch.where(
        played,
        auxiliary_weights(mini.ce_weights * played),
        auxiliary_weights(mini.ce_weights * ~played),
    )
    columns: dict[str, Any] = {item.name: getattr(mini, item.name) for item in fields(PPOBatch)}
    columns["ce_weights"] = known
    weights = loss_weights(mini.mask, mode, loss_units(mini.mask, mode), horizon=horizon)
    return MiniBatch(**columns, token_weights=weights)


def forward_passes(
    part: Scorer | Trainable,
    batch: Batch,
    micro: MicroBatching,
    device: torch.device,
    compute: Callable[[Any, Batch], Result],
) -> list[tuple[torch.Tensor, Result]]:
    """Run `compute(model, micro_batch)` without gradients and without dropout on this rank's share
    of the batch. Returns the row indices and the result of each pass."""
    replica = part.replica
    off = isinstance(part, Scorer) and part.without_adapters
    mine = replica.world.deal(batch.lengths)
    dummy = batch.lengths.argmin()[None]
    part.model.eval()
    results: list[tuple[torch.Tensor, Result]] = []
    with (
        adapters_off(part.model) if off else nullcontext(),
        torch.no_grad(),
        torch.autocast(device.type, dtype=part.autocast, enabled=part.autocast is not None),
    ):
        packed = packs_rows(part.model)
        # Without gradients, a forward pass waits for other ranks only if the model is sharded.
        repeatable = not replica.in_step
        for attempt in oom_retry(
            part, micro, batch.lengths[mine], packed=packed, repeatable=repeatable
        ):
            results = []
            with attempt as cut:
                for rows, counts in replica.passes(
                    [mine[picked] for picked in cut], dummy, backward=False
                ):
                    watchdog.beat()
                    result = replica.forward(compute, to_device(select(batch, rows), device))
                    # Dummy rows only keep the ranks in step; their results are dropped.
                    if counts:
                        results.append((rows, result))
    return results


def score_logprobs(
    part: Scorer | Trainable,
    batch: TokenBatch,
    micro: MicroBatching,
    device: torch.device,
    sampling: SamplingParams = PLAIN,
) -> torch.Tensor:
    """Compute the log-probs of the sampled tokens under the distribution that `sampling` samples
    from. Returns float32 [B, A] on the CPU."""
    return _score(part, batch, micro, device, partial(_logprobs, sampling=sampling))


def score_entropies(
    part: Scorer | Trainable,
    batch: TokenBatch,
    micro: MicroBatching,
    device: torch.device,
    sampling: SamplingParams = PLAIN,
) -> torch.Tensor:
    """Compute, at each sampled token, the entropy in nats of the distribution that `sampling`
    samples from. Returns float32 [B, A] on the CPU."""
    return _score(part, batch, micro, device, partial(_entropies, sampling=sampling))


def score_values(
    part: Scorer | Trainable, batch: TokenBatch, micro: MicroBatching, device: torch.device
) -> torch.Tensor:
    """Compute the critic's value before each sampled token. Returns float32 [B, A] on the CPU."""
    return _score(part, batch, micro, device, _values)


def score_last_values(
    part: Scorer | Trainable, batch: TokenBatch, micro: MicroBatching, device: torch.device
) -> torch.Tensor:
    """Compute the critic's value after the last token of each row. Returns float32 [B] on the CPU."""
    # The critic returns the value before each token, so add a padding token to get the value after
    # the last one.
    ids = nn.functional.pad(batch.input_ids, (0, 1))
    # True only for the token after the last one of each row. Column a belongs to token a + 1.
    ends = nn.functional.one_hot(batch.lengths - 1, batch.input_ids.shape[1]).bool()
    longer = TokenBatch(input_ids=ids, lengths=batch.lengths + 1, mask=ends, images=batch.images)
    return score_values(part, longer, micro, device).sum(dim=1)


def _logprobs(model: Any, batch: TokenBatch, sampling: SamplingParams) -> torch.Tensor:
    return token_logprobs(
        model, batch.input_ids, batch.mask, images=batch.images, sampling=sampling
    )[0]


def _entropies(model: Any, batch: TokenBatch, sampling: SamplingParams) -> torch.Tensor:
    ids = batch.input_ids
    mask = batch.mask
    return token_logprobs(
        model, ids, mask, images=batch.images, with_entropy=True, sampling=sampling
    )[1]


def _values(model: Any, batch: TokenBatch) -> torch.Tensor:
    return token_values(model, batch.input_ids, batch.mask, images=batch.images)


def _score(
    scorer: Scorer | Trainable,
    batch: TokenBatch,
    micro: MicroBatching,
    device: torch.device,
    forward: Callable[[Any, TokenBatch], torch.Tensor],
) -> torch.Tensor:
    out = torch.zeros(batch.mask.shape, dtype=torch.float32)
    for rows, values in forward_passes(scorer, batch, micro, device, forward):
        out[rows, : values.shape[1]] = values.float().cpu()
    # Each rank has filled in its own rows and left 0 elsewhere, so the sum is the result for the
    # whole batch.
    scores = scorer.replica.world.all_reduce_sum(out)
    if not torch.isfinite(scores).all():
        raise TrainingError(
            f"The {type(scorer.model).__name__} returns NaN or infinite values before the "
            "update, because numbers overflow in its precision. Set "
            "actor_rollout_ref.model.dtype and critic.model.dtype to float32 or bfloat16. "
            "The last saved checkpoint is intact."
        )
    return scores


def plan_mini_batches(
    rows: int,
    *,
    size: int | None,
    count: int | None,
    epochs: int,
    shuffle: bool,
    generator: torch.Generator,
) -> list[torch.Tensor]:
    """Return the row indices of each mini-batch, epoch after epoch.

    An epoch has `count` mini-batches or, if `count` is None, the smallest number of mini-batches
    with at most `size` rows each. Their sizes are nearly equal: otherwise, a small remainder would
    get an optimizer step as large as the others. The order of the rows is random; with `shuffle`,
    each epoch has a new order.
    """
    order = torch.randperm(rows, generator=generator)
    parts = count_mini_batches(rows, size=size, count=count)
    plan: list[torch.Tensor] = []
    for epoch in range(epochs):
        if shuffle and epoch > 0:
            order = torch.randperm(rows, generator=generator)
        plan += torch.tensor_split(order, parts)
    return plan


def count_mini_batches(rows: int, *, size: int | None, count: int | None) -> int:
    """Return the number of mini-batches per epoch that `plan_mini_batches` makes from `rows`
    rows."""
    return min(count, rows) if count else -(-rows // (size or rows))

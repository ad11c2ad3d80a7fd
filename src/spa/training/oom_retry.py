"""Continuing after out-of-memory: the same work again in micro-batches half as large."""

import gc
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from spa.errors import TrainingError
from spa.models.forward import micro_batches

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatching:
    """Division of a batch for the forward pass; changes memory, never results."""

    rows: int | None = None
    max_tokens: int | None = None

    def split(
        self, lengths: torch.Tensor, *, micro_batch_shrink: int = 0, packed: bool = False
    ) -> Iterator[torch.Tensor]:
        """Row indices of each micro-batch, with both limits halved `micro_batch_shrink` times."""
        rows = self.rows or len(lengths)
        tokens = None if self.max_tokens is None else max(1, self.max_tokens >> micro_batch_shrink)
        return micro_batches(
            lengths, rows=max(1, rows >> micro_batch_shrink), max_tokens=tokens, packed=packed
        )


class Halving(Protocol):
    """Something that remembers how often its micro-batches had to be halved."""

    micro_batch_shrink: int


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the memory of a GPU or of the machine was exhausted."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # PyTorch's allocator for CPUs raises a plain RuntimeError.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


class Attempt:
    """One attempt at a piece of work: `with attempt as cut` gives its micro-batches, as lists of
    row indices. Running out of memory ends the block, not the program."""

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
    """Attempts at a piece of work on sequences of these `lengths`, until one fits into memory:

        for attempt in oom_retry(...):
            with attempt as cut:
                ...  # from its beginning: nothing is kept of an attempt that was broken off

    When memory runs out, the next attempt has micro-batches half as large, here and from now on.
    Raises TrainingError if single rows do not fit, or if the work is not `repeatable` because other
    ranks wait in the middle of it.
    """
    while True:
        attempt = Attempt(
            list(micro.split(lengths, micro_batch_shrink=part.micro_batch_shrink, packed=packed))
        )
        yield attempt
        if not attempt.reason:
            return
        # Inside the block the traceback still references the activations; only here can they be
        # freed.
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
        # Kept on `part`, so that the next batch starts with a size that fits.
        part.micro_batch_shrink += 1
        log.warning(
            "Out of memory with %d examples per micro-batch; spa halves the micro-batch and "
            "tries again (%s)",
            largest,
            attempt.reason,
        )

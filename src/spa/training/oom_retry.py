"""Going on after out-of-memory: the same work again in micro-batches half as large."""

import gc
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch

from spa.errors import TrainingError
from spa.models.forward import micro_batches

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatching:
    """How a batch is cut for the forward pass; changes memory, never results."""

    rows: int | None = None
    max_tokens: int | None = None

    def split(self, lengths: torch.Tensor, *, halvings: int = 0, packed: bool = False) -> Iterator[torch.Tensor]:
        """Row indices of each micro-batch, with both limits halved `halvings` times."""
        rows = self.rows or len(lengths)
        tokens = None if self.max_tokens is None else max(1, self.max_tokens >> halvings)
        return micro_batches(lengths, rows=max(1, rows >> halvings), max_tokens=tokens, packed=packed)


class Halving(Protocol):
    """Something that remembers how often its micro-batches had to be halved."""

    halvings: int


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of a GPU or of the machine, was not enough."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def oom_retry(
    part: Halving,
    micro: MicroBatching,
    lengths: torch.Tensor,
    work: Callable[[list[torch.Tensor]], Result],
    packed: bool,
    *,
    repeatable: bool = True,
) -> Result:
    """`work` on micro-batches (lists of row indices) that fit into memory.

    When memory runs out, `work` is done again from its beginning, with micro-batches half as large, here and from now
    on; it must not keep anything of a broken-off attempt. Raises TrainingError if single rows do not fit, or if the
    work is not `repeatable` because other ranks wait in the middle of it.
    """
    while True:
        cut = list(micro.split(lengths, halvings=part.halvings, packed=packed))
        try:
            return work(cut)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).splitlines()[0] if str(error) else "out of memory"
        # Only here, outside the handler, has the traceback let go of the activations.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        largest = max(len(rows) for rows in cut)
        if not repeatable:
            raise TrainingError(
                f"out of memory with {largest} rows at a time ({reason}). Ranks must stay in step, so micro-batches "
                "are not halved while others wait: lower micro_batch_size_per_gpu (or ppo_max_token_len_per_gpu), then "
                "start the same command again."
            )
        if largest == 1:
            raise TrainingError(
                f"one sequence of {int(lengths.max())} tokens does not fit into memory ({reason}). Turn on "
                "enable_gradient_checkpointing, train LoRA adapters (lora.rank=64), use shorter episodes or a smaller "
                "model; `spa doctor --fit CONFIG` estimates what is needed."
            )
        part.halvings += 1
        log.warning("out of memory with %d rows at a time; from now on half as many (%s)", largest, reason)

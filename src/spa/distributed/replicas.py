"""A model that all ranks train: replicated on each rank (DDP), or sharded (FSDP2).

A computation is passed to `forward` as a function of the model, so that the model's collectives run
around the whole computation, whichever layers it uses.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spa.distributed.world import ALONE, World


class FunctionModule(nn.Module):
    """Calls a given function with `model`. DDP and FSDP wrap this module, not the model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[..., Any], *args: Any) -> Any:
        """Return `work(model, *args)`."""
        return work(self.model, *args)


class Replica:
    """A model with which this rank computes on its own. Subclasses involve the other ranks."""

    in_step = False
    """True if each forward pass waits for the other ranks, so that all ranks must make the same
    number of passes."""

    def __init__(self, model: Any, world: World = ALONE) -> None:
        self.model = model
        self.world = world

    def forward(self, work: Callable[..., Any], *args: Any, last: bool = True) -> Any:
        """Return `work(model, *args)`. last: the backward pass of this call is the step's last
        one."""
        return work(self.model, *args)

    def full_model(self) -> Any:
        """The model with its full current weights, for engines and checkpoints. Collective: every
        rank must call it."""
        return self.model

    def gathered(self, state: Any) -> Any:
        """Return `state`, the optimizer's nested state, with full tensors instead of shards.
        Collective: every rank must call it, but only rank 0 gets the tensors."""
        return state

    def passes(
        self, cut: Sequence[torch.Tensor], dummy: torch.Tensor, *, backward: bool
    ) -> Iterator[tuple[torch.Tensor, bool]]:
        """Yield the rows of each forward pass, and whether they count. cut: the rows of this rank's
        micro-batches. If ranks must stay in step, a rank with fewer micro-batches than others makes
        extra passes over the `dummy` rows, which do not count."""
        # A rank without rows still makes one backward pass, because averaging the gradients needs
        # every rank.
        count = (
            self.world.all_reduce_max(len(cut)) if self.in_step else max(len(cut), int(backward))
        )
        yield from ((rows, True) for rows in cut)
        yield from ((dummy, False) for _ in range(count - len(cut)))


class Replicated(Replica):
    """DDP: every rank has the whole model; gradients are averaged during a step's last backward
    pass."""

    def __init__(self, model: Any, world: World) -> None:
        super().__init__(model, world)
        # Gradients are views of the buckets that are sent, which saves a copy.
        self._ddp = DistributedDataParallel(FunctionModule(model), gradient_as_bucket_view=True)

    def forward(self, work: Callable[..., Any], *args: Any, last: bool = True) -> Any:
        """Return `work(model, *args)`; after the step's `last` backward pass, gradients are
        averaged over the ranks."""
        # Without gradients there is nothing to send, so no rank waits.
        if not torch.is_grad_enabled():
            return work(self.model, *args)
        # Gradients are accumulated on this rank and sent with the last micro-batch.
        with nullcontext() if last else self._ddp.no_sync():
            return self._ddp(work, *args)

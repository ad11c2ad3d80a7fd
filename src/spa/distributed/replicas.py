"""A model that is trained by all ranks: whole on each of them (DDP), or in shards (FSDP2).

What is computed with a model is handed to `forward` as a function of it, so that the model's
collectives happen around the whole computation, whichever of its layers that uses.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spa.distributed.world import ALONE, World


class FunctionModule(nn.Module):
    """Computes a given function with `model`. DDP and FSDP wrap this, not the model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[..., Any], *args: Any) -> Any:
        """`work(model, *args)`"""
        return work(self.model, *args)


class Replica:
    """A model that one process computes with, alone."""

    in_step = False
    """True if each forward pass waits for the other ranks, so that all ranks must make the same
    number of passes."""

    def __init__(self, model: Any, world: World = ALONE) -> None:
        self.model = model
        self.world = world

    def forward(self, work: Callable[..., Any], *args: Any, last: bool = True) -> Any:
        """`work(model, *args)`. `last`: the backward pass of this call is the step's last one."""
        return work(self.model, *args)

    def full_model(self) -> Any:
        """The model with its full current weights, for engines and checkpoints. Collective: every
        rank must call it."""
        return self.model

    def gathered(self, state: Any) -> Any:
        """A nested state of the model's optimizer in whole tensors. Collective; rank 0 gets them."""
        return state

    def passes(
        self, cut: Sequence[torch.Tensor], dummy: torch.Tensor, *, backward: bool
    ) -> Iterator[tuple[torch.Tensor, bool]]:
        """The rows of each forward pass and whether they count. Where ranks must stay in step,
        those with fewer micro-batches than others read `dummy` rows that do not."""
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
        """`work(model, *args)`, with gradients averaged over the ranks if it is the step's last."""
        # Without gradients there is nothing to send, so no rank waits.
        if not torch.is_grad_enabled():
            return work(self.model, *args)
        # Gradients are added up here first and sent with the last micro-batch.
        with nullcontext() if last else self._ddp.no_sync():
            return self._ddp(work, *args)

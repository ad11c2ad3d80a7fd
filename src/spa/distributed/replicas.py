"""Train one model on all ranks: replicated on each rank (DDP), or sharded (FSDP2, `fully_shard`).

A computation is passed to `forward` as a function of the model. The collectives of DDP or FSDP then
cover the whole computation, whichever layers it uses.

With FSDP2, parameters, gradients and optimizer states are sharded over the ranks. Every decoder
layer is gathered when it is needed and resharded afterwards. Engines and checkpoints get full
weights, so that a checkpoint does not depend on the number of ranks that wrote it.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from spa.distributed.world import ALONE, World
from spa.errors import ConfigError


class FunctionModule(nn.Module):
    """Module that calls a given function with `model`. DDP and FSDP wrap this module instead of the
    model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[..., Any], *args: Any) -> Any:
        """Return `work(model, *args)`."""
        return work(self.model, *args)


class Replica:
    """A model with which this rank computes alone. Subclasses involve the other ranks."""

    in_step = False
    """True if each forward pass waits for the other ranks, so that all ranks must make the same
    number of passes."""

    def __init__(self, model: Any, world: World = ALONE) -> None:
        self.model = model
        self.world = world

    def forward(self, work: Callable[..., Any], *args: Any, last: bool = True) -> Any:
        """Return `work(model, *args)`. `last` is True if the backward pass of this call is the last
        one of the optimizer step."""
        return work(self.model, *args)

    def full_model(self) -> Any:
        """Return the model with its full current weights, for engines and checkpoints. Collective:
        every rank must call it."""
        return self.model

    def gathered(self, state: Any) -> Any:
        """Return `state`, the optimizer's nested state, with full tensors instead of shards.
        Collective: every rank must call it, but only rank 0 gets the tensors."""
        return state

    def passes(
        self, cut: Sequence[torch.Tensor], dummy: torch.Tensor, *, backward: bool
    ) -> Iterator[tuple[torch.Tensor, bool]]:
        """Yield the row indices of each forward pass, and whether its results count. `cut` has the
        row indices of this rank's micro-batches.

        If ranks must stay in step, a rank with fewer micro-batches than others makes extra passes
        over the `dummy` rows, which do not count.
        """
        # A rank without rows still makes one backward pass, because every rank takes part in
        # averaging gradients.
        count = (
            self.world.all_reduce_max(len(cut)) if self.in_step else max(len(cut), int(backward))
        )
        yield from ((rows, True) for rows in cut)
        yield from ((dummy, False) for _ in range(count - len(cut)))


class Replicated(Replica):
    """DDP: every rank has the whole model, and gradients are averaged during the last backward pass
    of an optimizer step."""

    def __init__(self, model: Any, world: World) -> None:
        super().__init__(model, world)
        # Gradients are views of the buckets that are sent, which saves a copy.
        self._ddp = DistributedDataParallel(FunctionModule(model), gradient_as_bucket_view=True)

    def forward(self, work: Callable[..., Any], *args: Any, last: bool = True) -> Any:
        """Return `work(model, *args)`. With `last`, the backward pass also averages the gradients
        over the ranks."""
        # Without gradients there is nothing to average, so the model is called directly.
        if not torch.is_grad_enabled():
            return work(self.model, *args)
        # Gradients are accumulated on this rank and sent with the last micro-batch.
        with nullcontext() if last else self._ddp.no_sync():
            return self._ddp(work, *args)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Sharding options.

    `group` is the number of ranks that share one copy of the model. -1 means all ranks; fewer ranks
    mean hybrid sharding with several copies. With `reshard_after_forward`, gathered parameters are
    freed after the forward pass. With `offload`, shards are kept in CPU memory. Gathered parameters
    are converted to `dtype`, and gradients are reduced in float32; None keeps the dtype of the
    weights for both.
    """

    group: int = -1
    reshard_after_forward: bool = True
    offload: bool = False
    dtype: torch.dtype | None = None


class Sharded(Replica):
    """A sharded model. With `keeps_whole`, this rank also keeps a full copy, which `full_model`
    updates."""

    in_step = True

    def __init__(
        self, model: Any, world: World, sharding: Sharding, *, keeps_whole: bool = True
    ) -> None:
        super().__init__(model, world)
        self._device = next(model.parameters()).device
        # The copy is made before `fully_shard` turns the parameters into shards.
        self._whole = copy.deepcopy(model).requires_grad_(False) if keeps_whole else None
        # Prefix sharing would run each layer twice per forward pass, and only on some ranks. FSDP2
        # gathers a layer once per backward pass, on all ranks together, so sharing is off.
        model.shares_prefix = False
        options: dict[str, Any] = {
            "mesh": mesh_of(world, sharding.group, self._device.type),
            "reshard_after_forward": sharding.reshard_after_forward,
            "offload_policy": CPUOffloadPolicy(pin_memory=self._device.type == "cuda")
            if sharding.offload
            else OffloadPolicy(),
        }
        for layer in decoder_layers(model):
            fully_shard(layer, mp_policy=_precision(sharding.dtype, cast_inputs=True), **options)
        self._root: Any = FunctionModule(model)
        # The root's inputs are ids, masks, log-probs and weights, which must keep their dtypes.
        fully_shard(self._root, mp_policy=_precision(sharding.dtype, cast_inputs=False), **options)

    def forward(self, work: Callable[..., Any], *args: Any, last: bool = True) -> Any:
        """Return `work(model, *args)`; shards are gathered as needed."""
        return self._root(work, *args)

    @torch.no_grad()
    def full_model(self) -> Any:
        """Update the full copy one parameter at a time and return it; None on a rank that keeps no
        copy."""
        # A forward pass may have left modules gathered, but the code below needs parameters as
        # shards.
        for module in self._root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        targets = dict(self._whole.named_parameters()) if self._whole is not None else {}
        for name, parameter in self.model.named_parameters():
            # Frozen weights never change, so the copy already has them.
            if parameter.requires_grad:
                full = full_tensor(parameter, self._device)
                if targets:
                    targets[name].copy_(full)
        return self._whole

    def gathered(self, state: Any) -> Any:
        """Return the state with full tensors on the CPU of rank 0. On other ranks, None replaces
        each tensor."""
        if isinstance(state, torch.Tensor):
            full = full_tensor(state.detach(), self._device)
            return full.cpu() if self.world.is_main else None
        if isinstance(state, Mapping):
            return {key: self.gathered(item) for key, item in state.items()}
        if isinstance(state, list | tuple):
            return [self.gathered(item) for item in state]
        return state


def _precision(dtype: torch.dtype | None, *, cast_inputs: bool) -> MixedPrecisionPolicy:
    reduce = torch.float32 if dtype is not None else None
    return MixedPrecisionPolicy(
        param_dtype=dtype, reduce_dtype=reduce, cast_forward_inputs=cast_inputs and bool(dtype)
    )


def mesh_of(world: World, group: int, device: str) -> DeviceMesh:
    """Return a device mesh of all ranks, or of replicas with `group` ranks each. Raises ConfigError
    if `group` does not divide the number of ranks."""
    if group in (-1, world.size):
        return init_device_mesh(device, (world.size,), mesh_dim_names=("shard",))
    if group < 1 or world.size % group:
        raise ConfigError(
            f"fsdp_config.fsdp_size={group} does not divide {world.size} ranks; use a divisor, or -1 to "
            "shard over all ranks"
        )
    return init_device_mesh(
        device, (world.size // group, group), mesh_dim_names=("replicate", "shard")
    )


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Return a model's decoder layers: the modules of the classes that transformers lists in
    `_no_split_modules`."""
    names = {
        name
        for module in model.modules()
        for name in getattr(module, "_no_split_modules", None) or ()
    }
    return [module for module in model.modules() if type(module).__name__ in names]


def full_tensor(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the full tensor of a value that may be sharded. Collective: every rank must call it.
    Shards on the CPU are first moved to `device`."""
    if not isinstance(value, DTensor):
        return value
    moved: Any = value.to(device)
    return moved.full_tensor()


def like(parameter: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Shard `whole` like `parameter`. Every rank has the full tensor and takes its own shard,
    without communication."""
    # Adam's step counter is a scalar, not a shard.
    if not isinstance(parameter, DTensor) or whole.shape != parameter.shape:
        return whole
    moved = whole.to(device=parameter.device, dtype=whole.dtype)
    return distribute_tensor(moved, parameter.device_mesh, parameter.placements, src_data_rank=None)


def norm_of(value: torch.Tensor) -> float:
    """Return a gradient norm, which may be sharded, as a number."""
    return float(value.full_tensor() if isinstance(value, DTensor) else value)

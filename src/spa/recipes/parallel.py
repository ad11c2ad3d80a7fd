"""Placement of a run's models on its ranks, by configuration."""

from typing import Any

import torch

from spa.config.schema_models import FSDPConfig, Strategy
from spa.distributed.replicas import Replica, Replicated
from spa.distributed.shards import Sharded, Sharding
from spa.distributed.world import current_world
from spa.errors import ConfigError


def parallelize(
    model: Any,
    strategy: Strategy,
    cut: FSDPConfig,
    *,
    autocast: torch.dtype | None = None,
    trained: bool = True,
    played: bool = False,
) -> Replica:
    """The model as this rank holds it: alone, one of several whole copies (`ddp`), or in shards
    (`fsdp`).

    Of a model in shards every rank keeps a whole copy if engines play with it (`played`), else only
    rank 0, which writes checkpoints; of one that is not `trained`, none does. Call it before the
    optimizer is made: shards are new parameters.
    """
    world = current_world()
    # A frozen model has no gradients to average: each rank computes with a copy of its own.
    if world.size == 1 or (strategy == "ddp" and not trained):
        return Replica(model, world)
    if strategy == "ddp":
        return Replicated(model, world)
    sharding = Sharding(
        group=cut.fsdp_size,
        reshard_after_forward=cut.reshard_after_forward,
        offload=cut.offload,
        dtype=autocast,
    )
    return Sharded(model, world, sharding, keeps_whole=trained and (played or world.is_main))


def check_optimizer(name: str, strategy: Strategy) -> None:
    """Raises ConfigError for an optimizer that needs whole matrices where each rank has a part of
    them."""
    if name == "muon" and strategy != "ddp" and current_world().size > 1:
        raise ConfigError(
            "sft.optim.name=muon needs unsharded weight matrices. With several ranks, set "
            "sft.model.strategy=ddp or sft.optim.name=adamw"
        )

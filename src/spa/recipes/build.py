"""Build the models and optimizers of all recipes from the configuration."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spa.config.schema import Config, CriticConfig, OptimConfig, SFTOptimConfig
from spa.config.schema_models import Dtype, FSDPConfig, ModelConfig, Strategy
from spa.distributed.replicas import Replica, Replicated, Sharded, Sharding
from spa.distributed.world import current_world
from spa.errors import ConfigError
from spa.models.build import load_actor, make_trainable, pick_attention, pick_autocast
from spa.models.load import load_critic
from spa.models.lora import ADAPTER, has_adapters
from spa.plugins import translated
from spa.prompts.template import ChatTemplate
from spa.training.optim import Optimizer, make_optimizer, warmup_constant, warmup_cosine
from spa.training.update import Scorer, Trainable

log = logging.getLogger(__name__)


def weights_source(path: str, resume: Path | None, settings: ModelConfig) -> str:
    """Return the model name or folder from which a policy's weights are loaded: the checkpoint
    `resume` if given, otherwise `path`.

    With LoRA it is always `path`, the base model. The checkpoint contains merged weights, and its
    adapters are loaded separately.
    """
    return str(resume) if resume and settings.lora_rank == 0 else path


def build_policy(
    cfg: Config,
    path: str,
    device: torch.device,
    settings: ModelConfig,
    *,
    seed: int,
    resume: Path | None = None,
) -> tuple[Any, ChatTemplate]:
    """Load the policy, prepare it for training, and return it with its chat template.

    The weights come from the checkpoint `resume` if given, otherwise from `path`, a model name or
    folder. `seed` initializes new LoRA adapters.
    """
    for note in translated("model_notes", path):
        log.warning("%s", note)
    model, template = load_actor(cfg, weights_source(path, resume, settings), device, settings)
    make_trainable(
        model, settings, device, seed=seed, adapters=resume / ADAPTER if resume else None
    )
    return model, template


def build_critic(
    cfg: CriticConfig,
    path: str,
    device: torch.device,
    total: int,
    *,
    seed: int,
    resume: Path | None = None,
) -> Trainable:
    """Build the critic and its optimizer.

    The critic is loaded from the checkpoint `resume` if given. Otherwise it is the model `path`
    with a new value head, initialized from `seed`. `total` is the number of PPO steps, for the
    learning-rate schedule.
    """
    settings = cfg.model
    saved = resume / "critic" if resume else None
    weights = saved if settings.lora_rank == 0 else None
    # Custom model code (`trust_remote_code`) has no class for a body without a head. Such a critic
    # is loaded from `path` first, and then gets the saved body.
    own_code = settings.trust_remote_code
    source = str(weights) if weights and not own_code else path
    attention = pick_attention(
        settings.attn_implementation, source, device, settings.dtype, code=own_code
    )
    model = load_critic(source, attention=attention, trust_remote_code=own_code).to(device)
    if weights and own_code:
        model.load_body(weights)
    make_trainable(model, settings, device, seed=seed, adapters=saved / ADAPTER if saved else None)
    # With adapters the body comes from `path`, so the saved head is loaded separately.
    if saved is not None:
        model.load_head(saved)
    return trainable(
        model,
        lambda: ppo_optimizer(model, cfg.optim, total),
        device,
        dtype=settings.dtype,
        strategy=cfg.strategy,
        sharding=settings.fsdp_config,
        grad_clip=cfg.grad_clip,
    )


def build_reference(cfg: Config, actor: Trainable, device: torch.device) -> Scorer:
    """Build the frozen reference policy of the KL terms."""
    # With LoRA the frozen base is the reference: adapters are switched off, and no second copy is
    # loaded.
    if has_adapters(actor.model):
        return Scorer(
            model=actor.model,
            parallel=actor.replica,
            autocast=actor.autocast,
            without_adapters=True,
        )
    ref = cfg.actor_rollout_ref.ref
    frozen = load_actor(cfg, cfg.model_path, device)[0]
    parallel = parallelize(
        frozen, ref.strategy, ref.fsdp_config, autocast=actor.autocast, trained=False
    )
    return Scorer(model=frozen, parallel=parallel, autocast=actor.autocast)


def trainable(
    model: Any,
    optimizer: Callable[[], Optimizer],
    device: torch.device,
    *,
    dtype: Dtype,
    strategy: Strategy,
    sharding: FSDPConfig,
    grad_clip: float,
    played: bool = False,
) -> Trainable:
    """Distribute the model over the ranks, and create its optimizer by calling `optimizer`.

    Set `played` if engines sample from the model: each rank then keeps a full copy of a sharded
    model.
    """
    autocast = pick_autocast(dtype, device)
    # Sharding replaces the parameters, so the optimizer is created afterwards.
    parallel = parallelize(model, strategy, sharding, autocast=autocast, played=played)
    return Trainable(
        model=model,
        parallel=parallel,
        optimizer=optimizer(),
        grad_clip=grad_clip,
        autocast=autocast,
    )


def parallelize(
    model: Any,
    strategy: Strategy,
    sharding: FSDPConfig,
    *,
    autocast: torch.dtype | None = None,
    trained: bool = True,
    played: bool = False,
) -> Replica:
    """Return this rank's part of a model: the only copy, one of several full copies (`ddp`), or a
    shard (`fsdp`).

    If a sharded model is `trained`, rank 0 also keeps a full copy, from which it writes
    checkpoints; if engines sample from the model as well (`played`), every rank keeps one.
    """
    world = current_world()
    # A frozen model has no gradients to average: each rank computes with its own copy.
    if world.size == 1 or (strategy == "ddp" and not trained):
        return Replica(model, world)
    if strategy == "ddp":
        return Replicated(model, world)
    cut = Sharding(
        group=sharding.fsdp_size,
        reshard_after_forward=sharding.reshard_after_forward,
        offload=sharding.offload,
        dtype=autocast,
    )
    return Sharded(model, world, cut, keeps_whole=trained and (played or world.is_main))


def ppo_optimizer(model: nn.Module, optim: OptimConfig, total: int) -> Optimizer:
    """Create AdamW with the configured learning-rate schedule. The schedule covers `total` PPO
    steps, not mini-batches."""
    # A negative number of steps (-1 is the default) means that the ratio sets the warm-up.
    warmup = (
        optim.lr_warmup_steps
        if optim.lr_warmup_steps >= 0
        else int(total * optim.lr_warmup_steps_ratio)
    )
    return make_optimizer(
        model,
        lr=optim.lr,
        betas=optim.betas,
        weight_decay=optim.weight_decay,
        schedule=_schedule(optim.warmup_style, total, warmup, floor=optim.min_lr_ratio or 0.0),
    )


def sft_optimizer(model: nn.Module, optim: SFTOptimConfig, total: int) -> Optimizer:
    """Create AdamW or Muon, with warm-up and a cosine or constant schedule over `total` optimizer
    steps."""
    return make_optimizer(
        model,
        name=optim.name,
        lr=optim.lr,
        betas=optim.betas,
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        muon_lr=optim.muon_lr,
        schedule=_schedule(optim.lr_scheduler, total, int(total * optim.warmup_steps_ratio)),
    )


def _schedule(kind: str, total: int, warmup: int, *, floor: float = 0.0) -> Callable[[int], float]:
    if kind == "cosine":
        return warmup_cosine(total, warmup, floor=floor)
    return warmup_constant(warmup)


def check_optimizer(name: str, strategy: Strategy) -> None:
    """Raise ConfigError if the optimizer `name` needs full weight matrices (Muon) but `strategy`
    shards them over several ranks."""
    if name == "muon" and strategy != "ddp" and current_world().size > 1:
        raise ConfigError(
            "sft.optim.name=muon needs unsharded weight matrices. With several ranks, set "
            "sft.model.strategy=ddp or sft.optim.name=adamw"
        )

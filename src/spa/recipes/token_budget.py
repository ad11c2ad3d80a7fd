"""Replace `auto` in the configuration's micro-batch sizes by the number of tokens that fit into a
GPU's memory."""

from dataclasses import dataclass, replace

import torch

from spa.algo.estimators import estimator_named
from spa.config.schema import Config
from spa.config.schema_models import FSDPConfig, ModelConfig
from spa.engines.decoder import KEPT_SHARE
from spa.engines.factory import on_this_machine
from spa.engines.fused import COPY_BYTES
from spa.models import memory
from spa.models.load import model_config
from spa.models.memory import FULL, HALF, ModelShape
from spa.models.precision import on_cpu
from spa.models.shapes import known_config
from spa.recipes.ppo_models import keys_of

USABLE = 0.92  # Share of a GPU's memory that a run can use. CUDA and fragmentation take the rest.
# Share of the free memory to plan for activations. Estimates are accurate to about 25 %.
CAUTION = 0.75
MOST = 16384  # tokens; larger micro-batches are no faster
LEAST = 1024  # tokens; below this, `auto` becomes a number of sequences
STEP = 256  # tokens; budgets are multiples of this


def with_token_budgets(cfg: Config, gpu_bytes: float | None, ranks: int = 1) -> Config:
    """Return `cfg` with `auto` resolved in `sft.data.max_token_len_per_gpu` and `use_dynamic_bsz`.

    `gpu_bytes` is the memory of each of the `ranks` GPUs, which determines the number of tokens. It
    is None for a CPU, where a micro-batch is a fixed number of sequences.
    """
    data = cfg.sft.data
    actor = cfg.actor_rollout_ref.actor
    critic = cfg.critic
    auto = [
        data.max_token_len_per_gpu == "auto",
        actor.use_dynamic_bsz == "auto",
        critic.use_dynamic_bsz == "auto",
    ]
    if not any(auto):
        return cfg
    tokens: list[int | None] = [None, None, None]
    if gpu_bytes is not None:
        model = cfg.actor_rollout_ref.model
        shape = shape_of(cfg.model_path, code=model.trust_remote_code)
        usable = USABLE * gpu_bytes / cfg.compare.per_gpu - memory.logits()
        held = kept_in_ppo(cfg, shape, ranks) | kept_by_engine(cfg, shape, gpu_bytes, ranks)
        ppo = usable - sum(held.values())
        sft = usable - sum(kept_in_sft(cfg, shape, ranks).values())
        free = ((sft, cfg.sft.model), (ppo, model), (ppo, cfg.critic.model))
        tokens = [budget(shape, left, settings) for left, settings in free]
    if auto[0]:
        data = replace(data, max_token_len_per_gpu=tokens[0])
    if auto[1]:
        actor = replace(
            actor,
            use_dynamic_bsz=tokens[1] is not None,
            ppo_max_token_len_per_gpu=min(tokens[1] or MOST, actor.ppo_max_token_len_per_gpu),
        )
    if auto[2]:
        critic = replace(
            critic,
            use_dynamic_bsz=tokens[2] is not None,
            ppo_max_token_len_per_gpu=min(tokens[2] or MOST, critic.ppo_max_token_len_per_gpu),
        )
    return replace(
        cfg,
        sft=replace(cfg.sft, data=data),
        actor_rollout_ref=replace(cfg.actor_rollout_ref, actor=actor),
        critic=critic,
    )


def with_budgets_of_device(cfg: Config, ranks: int = 1) -> Config:
    """Return `cfg` with the token budgets of the device that it names, one of `ranks` equal
    ones."""
    gpu = None if on_cpu(cfg) else torch.cuda.get_device_properties(0).total_memory
    # Budgets depend on the engine that plays here, but the configuration keeps `auto`.
    made = with_token_budgets(on_this_machine(cfg), gpu, ranks)
    part = replace(made.actor_rollout_ref, rollout=cfg.actor_rollout_ref.rollout)
    return replace(made, actor_rollout_ref=part)


def budget(shape: ModelShape, free: float, settings: ModelConfig) -> int | None:
    """Return the number of tokens in a micro-batch whose activations fit into `free` bytes, at most
    `MOST`; None if it is below `LEAST`."""
    width = FULL if settings.dtype == "float32" else HALF
    checkpointing = settings.enable_gradient_checkpointing
    each = memory.activations(shape, 1, checkpointing=checkpointing, width=width)
    tokens = min(MOST, int(CAUTION * free / each)) // STEP * STEP
    return tokens if tokens >= LEAST else None


@dataclass(frozen=True, slots=True)
class Cut:
    """The sharding of a model into `count` shards, which are kept in CPU memory if `offload` is
    set."""

    count: int
    offload: bool

    def of(self, size: int) -> int:
        """Return the number of bytes on each GPU for weights or a training state of `size`
        bytes."""
        return 0 if self.offload and self.count > 1 else size // self.count


def cut_for(strategy: str, options: FSDPConfig, ranks: int) -> Cut:
    """Return how a model is sharded over `ranks` GPUs."""
    return Cut(shards(strategy, options.fsdp_size, ranks), options.offload)


def shards(strategy: str, size: int, ranks: int) -> int:
    """Return the number of shards of a model: 1 with DDP; with FSDP `size`, but at most `ranks`, or
    `ranks` if `size` is below 1."""
    if strategy == "ddp":
        return 1
    return ranks if size < 1 else min(size, ranks)


def kept_in_sft(cfg: Config, shape: ModelShape, ranks: int = 1) -> dict[str, int]:
    """Memory of the model that SFT trains, on the first of `ranks` GPUs, in bytes by component."""
    model = cfg.sft.model
    cut = cut_for(model.strategy, model.fsdp_config, ranks)
    return {
        "model (weights, gradients, Adam)": cut.of(
            memory.training_state(shape, lora_rank=model.lora_rank)
        ),
        "whole copy of the sharded model": FULL * shape.parameters if cut.count > 1 else 0,
    }


def held_by_engine(cfg: Config, shape: ModelShape, ranks: int = 1) -> dict[str, int]:
    """Memory of the engine while it plays, on one of `ranks` GPUs, in bytes by component."""
    rollout = cfg.actor_rollout_ref.rollout
    train = cfg.es_manager.train
    # Every rank plays its own groups. All episodes of a step are played in parallel, each with a KV
    # cache for the full context. Validation plays at most as many episodes at a time. vLLM has
    # caches for `max_num_seqs` episodes, and queues the others. The local engine keeps every cache.
    episodes = -(-train.env_groups // ranks) * train.group_size
    if rollout.name == "vllm":
        width = FULL if rollout.dtype == "float32" else HALF
        copy = width * shape.parameters
        episodes = min(episodes, rollout.max_num_seqs)
    else:
        # In float32 the local engine shares the trainer's weights, unless they are small.
        width = FULL if cfg.actor_rollout_ref.model.dtype == "float32" else HALF
        copy = width * shape.parameters
        copy = 0 if width == FULL and copy > COPY_BYTES else copy
    cache = memory.cache(shape, episodes, rollout.max_model_len, width=width)
    return {"engine (copy of the weights)": copy, "keys and values": cache}


def kept_by_engine(
    cfg: Config, shape: ModelShape, gpu_bytes: float, ranks: int = 1
) -> dict[str, int]:
    """Return the memory that the engine keeps while the models are updated, in bytes by component.

    vLLM frees its memory during updates. The local engine keeps its copy of the weights, and also
    its KV cache if that is small (`KEPT_SHARE`).
    """
    if cfg.actor_rollout_ref.rollout.name == "vllm":
        return {}
    held = held_by_engine(cfg, shape, ranks)
    if held["keys and values"] > KEPT_SHARE * gpu_bytes:
        del held["keys and values"]
    return held


def kept_in_ppo(cfg: Config, shape: ModelShape, ranks: int = 1) -> dict[str, int]:
    """Memory of the models that PPO keeps during both rollouts and updates, on the first of `ranks`
    GPUs, in bytes by component."""
    part = cfg.actor_rollout_ref
    actor, frozen, own = part.actor, part.ref, cfg.critic
    lora_rank = part.model.lora_rank
    # A critic is as large as the policy. Estimators without values, such as grpo, need none.
    critic = estimator_named(cfg.algorithm.adv_estimator, keys_of(cfg.algorithm)).needs_values
    value = memory.training_state(shape, lora_rank=own.model.lora_rank) if critic else 0
    # With LoRA the reference is the policy with its adapters switched off, so it needs no copy.
    ref = FULL * shape.parameters if cfg.has_kl_term() and lora_rank == 0 else 0
    cut = cut_for(actor.strategy, actor.fsdp_config, ranks)
    critic_cut = cut_for(own.strategy, own.model.fsdp_config, ranks)
    # Engines and checkpoints need full models: each rank also keeps the full policy, and the first
    # rank the full critic.
    whole = (cut.count > 1) + (critic and critic_cut.count > 1)
    return {
        "policy (weights, gradients, Adam)": cut.of(
            memory.training_state(shape, lora_rank=lora_rank)
        ),
        "critic (weights, gradients, Adam)": critic_cut.of(value),
        "reference": cut_for(frozen.strategy, frozen.fsdp_config, ranks).of(ref),
        "whole copies of the sharded models": FULL * shape.parameters * whole,
    }


def shape_of(name: str, *, code: bool = False) -> ModelShape:
    """Return the shape of a model, without network access for well-known models. `code` allows
    running the model's own Python files."""
    return memory.model_shape(known_config(name) or model_config(name, code=code))

"""Choose micro-batches with as many tokens as fit into a GPU's memory, where the configuration says
`auto`."""

from dataclasses import dataclass, replace

from spa.algo.estimators import estimator_named
from spa.config.schema import Config
from spa.config.schema_models import FSDPConfig, ModelConfig
from spa.engines.decoder import KEPT_SHARE
from spa.models import memory
from spa.models.load import model_config
from spa.models.memory import FULL, HALF, ModelShape
from spa.models.shapes import known_config
from spa.recipes.ppo_models import keys_of

USABLE = 0.92  # Share of a GPU's memory that a run can use. CUDA and fragmentation take the rest.
# Share of the free memory used for activations, because estimates are accurate to about 25 %.
CAUTION = 0.75
MOST = 16384  # tokens; longer micro-batches keep a GPU no busier
LEAST = 1024  # tokens; below, micro-batches are single sequences
STEP = 256  # budgets are a multiple of so many tokens


def with_token_budgets(cfg: Config, gpu_bytes: float | None, ranks: int = 1) -> Config:
    """`cfg` with `auto` resolved in `sft.data.max_token_len_per_gpu` and `use_dynamic_bsz`: to a
    number of tokens for each of `ranks` GPUs of this size, or to numbers of sequences on a CPU
    (None)."""
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


def budget(shape: ModelShape, free: float, settings: ModelConfig) -> int | None:
    """Number of tokens in a micro-batch whose activations fit into `free` bytes; None if below the
    minimum."""
    width = FULL if settings.dtype == "float32" else HALF
    checkpointing = settings.enable_gradient_checkpointing
    each = memory.activations(shape, 1, checkpointing=checkpointing, width=width)
    tokens = min(MOST, int(CAUTION * free / each)) // STEP * STEP
    return tokens if tokens >= LEAST else None


@dataclass(frozen=True, slots=True)
class Cut:
    """The sharding of a model. count: number of shards. offload: whether they are in CPU memory."""

    count: int
    offload: bool

    def of(self, size: int) -> int:
        """Bytes on each GPU for a state of `size` bytes."""
        return 0 if self.offload and self.count > 1 else size // self.count


def cut_of(strategy: str, options: FSDPConfig, ranks: int) -> Cut:
    """The sharding of a model over `ranks` GPUs."""
    return Cut(shards(strategy, options.fsdp_size, ranks), options.offload)


def shards(strategy: str, size: int, ranks: int) -> int:
    """The number of shards of a model: `size` or all ranks with FSDP, 1 with DDP."""
    if strategy == "ddp":
        return 1
    return ranks if size < 1 else min(size, ranks)


def kept_in_sft(cfg: Config, shape: ModelShape, ranks: int = 1) -> dict[str, int]:
    """Bytes of the model that SFT trains, on the first of `ranks` GPUs."""
    model = cfg.sft.model
    cut = cut_of(model.strategy, model.fsdp_config, ranks)
    return {
        "model (weights, gradients, Adam)": cut.of(
            memory.training_state(shape, lora_rank=model.lora_rank)
        ),
        "whole copy of the sharded model": FULL * shape.parameters if cut.count > 1 else 0,
    }


def held_by_engine(cfg: Config, shape: ModelShape, ranks: int = 1) -> dict[str, int]:
    """Bytes of an engine while it plays, on one of `ranks` GPUs."""
    rollout = cfg.actor_rollout_ref.rollout
    train = cfg.es_manager.train
    # Every rank plays its own groups. All episodes of a step play at once, each with a cache of the
    # full context; validation plays no more of them at a time. vLLM holds `max_num_seqs` of them
    # and queues the others; the local engine keeps every cache.
    episodes = -(-train.env_groups // ranks) * train.group_size
    if rollout.name == "vllm":
        width = FULL if rollout.dtype == "float32" else HALF
        copy = width * shape.parameters
        episodes = min(episodes, rollout.max_num_seqs)
    else:
        # In float32 it shares the trainer's weights.
        width = FULL if cfg.actor_rollout_ref.model.dtype == "float32" else HALF
        copy = width * shape.parameters if width == HALF else 0
    cache = memory.cache(shape, episodes, rollout.max_model_len, width=width)
    return {"engine (copy of the weights)": copy, "keys and values": cache}


def kept_by_engine(
    cfg: Config, shape: ModelShape, gpu_bytes: float, ranks: int = 1
) -> dict[str, int]:
    """Bytes that the engine keeps while the models are updated. vLLM sleeps; the local engine keeps
    its copy of the weights, and small caches of keys and values."""
    if cfg.actor_rollout_ref.rollout.name == "vllm":
        return {}
    held = held_by_engine(cfg, shape, ranks)
    if held["keys and values"] > KEPT_SHARE * gpu_bytes:
        del held["keys and values"]
    return held


def kept_in_ppo(cfg: Config, shape: ModelShape, ranks: int = 1) -> dict[str, int]:
    """Bytes of the models that PPO keeps during both rollouts and updates, on the first of `ranks`
    GPUs."""
    part = cfg.actor_rollout_ref
    actor, frozen, own = part.actor, part.ref, cfg.critic
    lora_rank = part.model.lora_rank
    # A critic is as large as the policy. Estimators without values, such as grpo, need none.
    critic = estimator_named(cfg.algorithm.adv_estimator, keys_of(cfg.algorithm)).needs_values
    value = memory.training_state(shape, lora_rank=own.model.lora_rank) if critic else 0
    wants_ref = (actor.use_kl_loss and actor.kl_loss_coef > 0) or cfg.algorithm.use_kl_in_reward
    # With LoRA the reference is the policy with its adapters switched off, so it needs no copy.
    ref = FULL * shape.parameters if wants_ref and lora_rank == 0 else 0
    cut = cut_of(actor.strategy, actor.fsdp_config, ranks)
    critic_cut = cut_of(own.strategy, own.model.fsdp_config, ranks)
    # Shards cannot play or be saved: each rank also has the full policy, the first one the full
    # critic.
    whole = (cut.count > 1) + (critic and critic_cut.count > 1)
    return {
        "policy (weights, gradients, Adam)": cut.of(
            memory.training_state(shape, lora_rank=lora_rank)
        ),
        "critic (weights, gradients, Adam)": critic_cut.of(value),
        "reference": cut_of(frozen.strategy, frozen.fsdp_config, ranks).of(ref),
        "whole copies of the sharded models": FULL * shape.parameters * whole,
    }


def shape_of(name: str, *, code: bool = False) -> ModelShape:
    """The shape of a model; well-known ones need no network. code: whether the model's Python files
    may be run."""
    return memory.model_shape(known_config(name) or model_config(name, code=code))

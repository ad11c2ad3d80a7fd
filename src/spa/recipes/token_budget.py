"""Micro-batches of as many tokens as fit into the memory of a GPU, where the configuration says
`auto`."""

from dataclasses import dataclass, replace

from spa.algo.estimators import estimator_named
from spa.config.schema import Config
from spa.config.schema_models import FSDPConfig, ModelConfig
from spa.models import memory
from spa.models.load import model_config
from spa.models.memory import FULL, HALF, ModelShape
from spa.models.shapes import known_config
from spa.recipes.ppo_models import keys_of

USABLE = 0.92  # Share of a GPU's memory that a run can use. CUDA and fragmentation take the rest.
# Share of the free memory that is given to activations, because estimates are good to a quarter.
CAUTION = 0.75
MOST = 16384  # tokens; longer micro-batches keep a GPU no busier
LEAST = 1024  # tokens; below, micro-batches are single sequences
STEP = 256  # budgets are a multiple of so many tokens


def with_token_budgets(cfg: Config, gpu_bytes: float | None) -> Config:
    """`cfg` without `auto` in `sft.data.max_token_len_per_gpu` and `use_dynamic_bsz`: a number of
    tokens for a GPU of this size, numbers of sequences for a CPU (None)."""
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
        ppo = usable - sum(kept_in_ppo(cfg, shape).values())
        if cfg.actor_rollout_ref.rollout.name != "vllm":
            ppo -= HALF * shape.parameters  # the engine's copy of the weights
        sft = usable - memory.training_state(shape, lora_rank=cfg.sft.model.lora_rank)
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
    """Tokens of a micro-batch whose activations fit into `free` bytes; None if they are too few."""
    width = FULL if settings.dtype == "float32" else HALF
    checkpointing = settings.enable_gradient_checkpointing
    each = memory.activations(shape, 1, checkpointing=checkpointing, width=width)
    tokens = min(MOST, int(CAUTION * free / each)) // STEP * STEP
    return tokens if tokens >= LEAST else None


@dataclass(frozen=True, slots=True)
class Cut:
    """The parts that a model is cut into, and whether they lie in the memory of the CPU."""

    count: int
    offload: bool

    def of(self, size: int) -> int:
        """Bytes on each GPU of a state of `size` bytes."""
        return 0 if self.offload and self.count > 1 else size // self.count


def cut_of(strategy: str, options: FSDPConfig, ranks: int) -> Cut:
    """The parts of a model on `ranks` GPUs."""
    return Cut(shards(strategy, options.fsdp_size, ranks), options.offload)


def shards(strategy: str, size: int, ranks: int) -> int:
    """The number of parts of a model: `size` or all ranks with FSDP, one with whole copies."""
    if strategy == "ddp":
        return 1
    return ranks if size < 1 else min(size, ranks)


def kept_in_ppo(cfg: Config, shape: ModelShape, ranks: int = 1) -> dict[str, int]:
    """Bytes of the models that PPO keeps both while it plays and while it updates, on the first of
    `ranks` GPUs."""
    part = cfg.actor_rollout_ref
    actor, frozen, own = part.actor, part.ref, cfg.critic
    lora_rank = part.model.lora_rank
    # A critic is as large as the policy. Estimators without values, such as grpo, need none.
    critic = estimator_named(cfg.algorithm.adv_estimator, keys_of(cfg.algorithm)).needs_values
    value = memory.training_state(shape, lora_rank=own.model.lora_rank) if critic else 0
    wants_ref = (actor.use_kl_loss and actor.kl_loss_coef > 0) or cfg.algorithm.use_kl_in_reward
    # With LoRA the reference is the policy with its adapters switched off: no copy.
    ref = FULL * shape.parameters if wants_ref and lora_rank == 0 else 0
    cut = cut_of(actor.strategy, actor.fsdp_config, ranks)
    critic_cut = cut_of(own.strategy, own.model.fsdp_config, ranks)
    # Shards cannot play or be saved: each rank also has the whole policy, the first one the whole
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
    """The shape of a model; of well-known ones without a network. `code`: Python files of the model
    may be run."""
    return memory.model_shape(known_config(name) or model_config(name, code=code))

"""`spa doctor --fit CONFIG`: will it fit into the memory of a GPU, and if not, what to change."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from spa.algo.estimators import estimator_named
from spa.config.load import load_config
from spa.config.schema import Config
from spa.models import memory
from spa.models.load import model_config
from spa.models.memory import FULL, HALF, ModelShape
from spa.models.shapes import known_config
from spa.run.console import write_out
from spa.stages.ppo_models import keys_of

GB = 1e9
USABLE = 0.92  # of a GPU's memory; the rest is CUDA's own and lost between blocks
# The size that is assumed without a GPU: an A100 or H100 of 80 GB.
DEFAULT_GB = 80.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A moment of a run and what lies in memory then, in bytes by name."""

    stage: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self.parts.values())


def report_memory(config: str, overrides: Sequence[str], *, gpu_gb: float | None = None) -> int:
    """Print the estimate and advice; 0 if everything fits, else 1. Raises SpaError."""
    cfg = load_config(config, list(overrides))
    size, source = (gpu_gb, "as given") if gpu_gb else gpu_memory()
    shape = shape_of(cfg.model_path)
    out = [
        f"{cfg.model_path}: {shape.parameters / 1e9:.2f} billion parameters; GPU with {size:.0f} GB ({source})",
        "",
    ]
    found = phases(cfg, shape)
    for phase in found:
        mark = " " if fits(phase, size) else "!"
        out.append(f"{mark} {phase.stage:<14} {phase.total / GB:7.1f} GB")
        out += [
            f"      {name:<32} {value / GB:7.1f} GB" for name, value in phase.parts.items() if value
        ]
    tight = [phase for phase in found if not fits(phase, size)]
    out.append("")
    if not tight:
        out.append("It fits.")
    else:
        out.append("It does not fit. What helps, each added to the ones before:")
        out += [f"  {text}" for text in advice(cfg, shape, size)]
    write_out("\n".join(out) + "\n")
    return 1 if tight else 0


def gpu_memory() -> tuple[float, str]:
    """GB of the first GPU, or of the one that the estimate assumes, and which of the two."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory / GB, torch.cuda.get_device_name(0)
    return DEFAULT_GB, "assumed; set --gpu-memory"


def shape_of(name: str) -> ModelShape:
    """The shape of a model; of well-known ones without a network."""
    return memory.model_shape(known_config(name) or model_config(name))


def fits(phase: Phase, gpu_gb: float) -> bool:
    """Whether a phase fits into a GPU."""
    return phase.total <= USABLE * gpu_gb * GB


def phases(cfg: Config, shape: ModelShape) -> list[Phase]:
    """Playing and updating, in fine-tuning and in PPO."""
    train = cfg.es_manager.train
    rollout = cfg.actor_rollout_ref.rollout
    actor = cfg.actor_rollout_ref.actor
    model = cfg.actor_rollout_ref.model
    sft = cfg.sft
    # Weights are float32 in any case (autocast); only activations and the cache follow the dtype.
    wide = FULL if model.dtype == "float32" else HALF
    # All episodes of a step play at once, each with a cache of the full context.
    kv = memory.cache(shape, train.env_groups * train.group_size, rollout.max_model_len, width=wide)
    policy = memory.training_state(shape, lora_rank=model.lora_rank)
    # Estimators without values, such as grpo, need no critic; one is as large as the policy.
    critic = estimator_named(cfg.algorithm.adv_estimator, keys_of(cfg.algorithm)).needs_values
    value = memory.training_state(shape, lora_rank=cfg.critic.model.lora_rank) if critic else 0
    wants_ref = (actor.use_kl_loss and actor.kl_loss_coef > 0) or cfg.algorithm.use_kl_in_reward
    # With LoRA the reference is the policy with its adapters switched off, so it needs no copy.
    ref = FULL * shape.parameters if wants_ref and model.lora_rank == 0 else 0
    # A dynamic batch is bounded by tokens; a fixed one by rows of the longest possible length.
    tokens = (
        actor.ppo_max_token_len_per_gpu
        if actor.use_dynamic_bsz
        else actor.ppo_micro_batch_size_per_gpu * rollout.max_model_len
    )
    sft_tokens = (
        sft.data.max_token_len_per_gpu or sft.data.micro_batch_size_per_gpu * sft.data.max_length
    )
    # Models of PPO stay in memory through both of its phases.
    kept = {
        "policy (weights, gradients, Adam)": policy,
        "critic (weights, gradients, Adam)": value,
        "reference": ref,
    }
    return [
        Phase(
            stage="self-play",
            parts={"policy (weights)": FULL * shape.parameters, "keys and values": kv},
        ),
        Phase(
            stage="fine-tuning",
            parts={
                "model (weights, gradients, Adam)": memory.training_state(
                    shape, lora_rank=sft.model.lora_rank
                ),
                "activations": memory.activations(
                    shape,
                    sft_tokens,
                    checkpointing=sft.model.enable_gradient_checkpointing,
                    width=wide,
                ),
                "logits": memory.logits(),
            },
        ),
        Phase(stage="PPO, playing", parts={**kept, "keys and values": kv}),
        Phase(
            stage="PPO, updating",
            parts={
                **kept,
                "activations": memory.activations(
                    shape, tokens, checkpointing=model.enable_gradient_checkpointing, width=wide
                ),
                "logits": memory.logits(),
            },
        ),
    ]


def advice(cfg: Config, shape: ModelShape, gpu_gb: float) -> Iterator[str]:
    """Changes that bring the peak down, until everything fits."""
    for text, changed in _steps(cfg):
        before = peak(cfg, shape)
        # Each step is kept even if it does not lower the peak: it may do so together with a later
        # one.
        cfg = changed
        after = peak(cfg, shape)
        if after < before:
            yield f"{text:<64} {before / GB:6.1f} -> {after / GB:.1f} GB"
        if all(fits(phase, gpu_gb) for phase in phases(cfg, shape)):
            return
    yield "a smaller model, or a GPU with more memory: the rest cannot be made smaller"


def peak(cfg: Config, shape: ModelShape) -> int:
    """Bytes of the largest phase."""
    return max(phase.total for phase in phases(cfg, shape))


def _steps(cfg: Config) -> Iterator[tuple[str, Config]]:
    """Changes from cheap to costly, each on top of the ones before."""
    arr = cfg.actor_rollout_ref
    sft_model = cfg.sft.model
    sft_data = cfg.sft.data
    # Smaller micro-batches cost only time.
    sft_data = replace(sft_data, micro_batch_size_per_gpu=1, max_token_len_per_gpu=None)
    actor = replace(arr.actor, ppo_micro_batch_size_per_gpu=1, use_dynamic_bsz=False)
    cfg = replace(
        cfg, actor_rollout_ref=replace(arr, actor=actor), sft=replace(cfg.sft, data=sft_data)
    )
    yield "micro_batch_size_per_gpu=1 sft.data.micro_batch_size_per_gpu=1", cfg
    model = replace(arr.model, enable_gradient_checkpointing=True)
    sft_model = replace(sft_model, enable_gradient_checkpointing=True)
    arr = replace(cfg.actor_rollout_ref, model=model)
    cfg = replace(cfg, actor_rollout_ref=arr, sft=replace(cfg.sft, model=sft_model))
    yield "enable_gradient_checkpointing=true (actor, critic and sft.model)", cfg
    train = cfg.es_manager.train
    # Fewer episodes play at once; the update has fewer examples, so this changes training.
    if train.env_groups > 16:
        train = replace(train, env_groups=16)
        cfg = replace(cfg, es_manager=replace(cfg.es_manager, train=train))
        yield "es_manager.train.env_groups=16 (fewer puzzles per step)", cfg
    # LoRA drops gradients and Adam moments of all full weights, but trains another model.
    arr = replace(arr, model=replace(arr.model, lora_rank=64))
    critic = replace(cfg.critic, model=replace(cfg.critic.model, lora_rank=64))
    cfg = replace(
        cfg,
        actor_rollout_ref=arr,
        critic=critic,
        sft=replace(cfg.sft, model=replace(sft_model, lora_rank=64)),
    )
    yield "lora.rank=64 sft.model.lora_rank=64", cfg
    yield (
        "algorithm.adv_estimator=grpo (no critic)",
        replace(cfg, algorithm=replace(cfg.algorithm, adv_estimator="grpo")),
    )

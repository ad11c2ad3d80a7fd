"""`spa doctor --fit CONFIG`: will it fit into the memory of a GPU, and if not, what to change."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spa.config.load import load_config
from spa.config.schema import ActorConfig, Config, CriticConfig
from spa.models import memory
from spa.models.memory import FULL, HALF, ModelShape
from spa.run.console import write_out
from spa.stages.token_budget import USABLE, kept_in_ppo, shape_of, with_token_budgets

GB = 1e9
# The size that is assumed without a GPU: an A100 or H100 of 80 GB.
DEFAULT_GB = 80.0
SEQUENCES = 64  # `max_num_seqs` of vLLM in the advice


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
    shape = shape_of(cfg.model_path, code=cfg.actor_rollout_ref.model.trust_remote_code)
    cfg = with_token_budgets(cfg, size * GB)
    out = [
        f"{cfg.model_path}: {shape.parameters / 1e9:.2f} billion parameters; GPU with {size:.0f} GB ({source})",
        "",
    ]
    estimated = phases(cfg, shape)
    for phase in estimated:
        mark = " " if fits(phase, size) else "!"
        out.append(f"{mark} {phase.stage:<14} {phase.total / GB:7.1f} GB")
        out += [
            f"      {name:<32} {value / GB:7.1f} GB" for name, value in phase.parts.items() if value
        ]
    tight = [phase for phase in estimated if not fits(phase, size)]
    out += ["", f"Tokens of a micro-batch: {tokens_of_micro_batches(cfg)}", ""]
    if not tight:
        out.append("The configuration fits.")
    else:
        out.append(
            "The configuration does not fit. Apply these changes in order; each line includes the "
            "changes above it:"
        )
        out += advice(cfg, shape, size)
    out += ["", margin(size)]
    write_out("\n".join(out) + "\n")
    return 1 if tight else 0


def tokens_of_micro_batches(cfg: Config) -> str:
    """The largest numbers of tokens per forward pass, or of sequences."""
    data = cfg.sft.data
    parts = {"SFT": data.max_token_len_per_gpu or f"{data.micro_batch_size_per_gpu} sequence(s)"}
    for name, part in (("policy", cfg.actor_rollout_ref.actor), ("critic", cfg.critic)):
        rows = f"{part.ppo_micro_batch_size_per_gpu} sequence(s)"
        parts[name] = part.ppo_max_token_len_per_gpu if part.use_dynamic_bsz else rows
    return ", ".join(f"{name} {value}" for name, value in parts.items())


def gpu_memory() -> tuple[float, str]:
    """GB of the first GPU, or of the one that the estimate assumes, and which of the two."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory / GB, torch.cuda.get_device_name(0)
    return DEFAULT_GB, "assumed; set --gpu-memory"


def fits(phase: Phase, gpu_gb: float) -> bool:
    """Return whether a phase fits into the memory of a GPU."""
    return phase.total <= USABLE * gpu_gb * GB


def margin(gpu_gb: float) -> str:
    """Explain how much memory the estimate leaves free on a GPU."""
    free = (1 - USABLE) * gpu_gb
    return (
        f"Margin: {USABLE * gpu_gb:.1f} of {gpu_gb:.0f} GB count as usable. The other {free:.1f} GB "
        "are reserved for the CUDA context,\n"
        "for kernel workspace and for memory fragmentation. The estimates are accurate to about 25 %."
    )


def phases(cfg: Config, shape: ModelShape) -> list[Phase]:
    """Playing and updating, in fine-tuning and in PPO."""
    train = cfg.es_manager.train
    rollout = cfg.actor_rollout_ref.rollout
    actor = cfg.actor_rollout_ref.actor
    model = cfg.actor_rollout_ref.model
    sft = cfg.sft
    own_copy = rollout.name == "vllm"
    # Trained weights are always float32, with autocast. Only activations, the cache and the
    # engine's copy of the weights have the configured dtype.
    wide = _width(rollout.dtype if own_copy else model.dtype)
    # All episodes of a step play at once, each with a cache of the full context; validation plays
    # no more of them at a time. vLLM holds `max_num_seqs` of them and lets the others wait; the
    # local engine keeps every cache.
    episodes = train.env_groups * train.group_size
    if own_copy:
        episodes = min(episodes, rollout.max_num_seqs)
    kv = memory.cache(shape, episodes, rollout.max_model_len, width=wide)
    engine = wide * shape.parameters if own_copy else 0
    played = {"engine (copy of the weights)": engine, "keys and values": kv}
    kept = kept_in_ppo(cfg, shape)
    critic = kept["critic (weights, gradients, Adam)"] > 0
    # Policy and critic are updated one after the other.
    passes = [(actor, model), *([(cfg.critic, cfg.critic.model)] if critic else [])]
    updates = [
        memory.activations(
            shape,
            _tokens(part, rollout.max_model_len),
            checkpointing=own.enable_gradient_checkpointing,
            width=_width(own.dtype),
        )
        for part, own in passes
    ]
    # `auto` is one of the two on a GPU of a known size.
    sft_tokens = sft.data.max_token_len_per_gpu
    if not isinstance(sft_tokens, int):
        sft_tokens = sft.data.micro_batch_size_per_gpu * sft.data.max_length
    return [
        Phase(
            stage="self-play",
            # With vLLM only the engine's copy of the weights is loaded, since no update follows.
            parts={"policy (weights)": 0 if own_copy else FULL * shape.parameters, **played},
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
                    width=_width(sft.model.dtype),
                ),
                "logits": memory.logits(),
            },
        ),
        Phase(stage="PPO, playing", parts={**kept, **played}),
        Phase(
            stage="PPO, updating",
            parts={
                **kept,
                "activations": max(updates),
                "logits": memory.logits(),
            },
        ),
    ]


def _width(dtype: str) -> int:
    """Bytes of a number that is computed in this precision."""
    return FULL if dtype == "float32" else HALF


def _tokens(part: ActorConfig | CriticConfig, longest: int) -> int:
    """The tokens of a micro-batch. A dynamic batch is limited by them. A fixed batch may consist of
    sequences that all have the maximal length."""
    if part.use_dynamic_bsz is True:
        return part.ppo_max_token_len_per_gpu
    return part.ppo_micro_batch_size_per_gpu * longest


Change = tuple[str, Callable[[Config], Config]]
"""An override as the user writes it, and the configuration with it applied."""


def advice(cfg: Config, shape: ModelShape, gpu_gb: float) -> Iterator[str]:
    """Changes that make every phase fit, those that leave the algorithm alone first. A change that
    lowers no phase that is too large is left out."""
    for heading, changes in (("Same algorithm", SAME), ("Other algorithm", OTHER)):
        yield f"  {heading}:"
        helped = False
        for text, change in changes:
            changed = change(cfg)
            pairs = zip(phases(cfg, shape), phases(changed, shape), strict=True)
            lower = [
                (before, after)
                for before, after in pairs
                if not fits(before, gpu_gb) and after.total < before.total
            ]
            if not lower:
                continue
            helped = True
            cfg = changed
            before, after = max(lower, key=lambda pair: pair[0].total)
            yield f"    {text:<74} {before.stage} {before.total / GB:.1f} -> {after.total / GB:.1f} GB"
            if all(fits(phase, gpu_gb) for phase in phases(cfg, shape)):
                return
        if not helped:
            yield "    no other setting saves memory on one GPU"
        if changes is SAME:
            yield "    on several GPUs, set strategy=fsdp and fsdp_config.offload_policy=true"
    yield (
        "  use a smaller model or a GPU with more memory, because no setting reduces the remaining "
        "memory"
    )


# Smaller micro-batches cost only time. A dynamic batch has no number of sequences to reduce.
def _small_micro_batches(cfg: Config) -> Config:
    small: dict[str, Any] = {"ppo_micro_batch_size_per_gpu": 1, "use_dynamic_bsz": False}
    actor = replace(cfg.actor_rollout_ref.actor, **small)
    return replace(
        cfg,
        actor_rollout_ref=replace(cfg.actor_rollout_ref, actor=actor),
        critic=replace(cfg.critic, **small),
    )


def _small_sft_micro_batches(cfg: Config) -> Config:
    data = replace(cfg.sft.data, micro_batch_size_per_gpu=1, max_token_len_per_gpu=None)
    return replace(cfg, sft=replace(cfg.sft, data=data))


def _fewer_sequences(cfg: Config) -> Config:
    rollout = cfg.actor_rollout_ref.rollout
    rollout = replace(rollout, name="vllm", max_num_seqs=min(rollout.max_num_seqs, SEQUENCES))
    return replace(cfg, actor_rollout_ref=replace(cfg.actor_rollout_ref, rollout=rollout))


def _fewer_puzzles(cfg: Config) -> Config:
    train = cfg.es_manager.train
    train = replace(train, env_groups=min(train.env_groups, 16))
    return replace(cfg, es_manager=replace(cfg.es_manager, train=train))


def _with_models(cfg: Config, **values: Any) -> Config:
    """The configuration with these values in the sections of actor, critic and fine-tuned model."""
    arr = cfg.actor_rollout_ref
    return replace(
        cfg,
        actor_rollout_ref=replace(arr, model=replace(arr.model, **values)),
        critic=replace(cfg.critic, model=replace(cfg.critic.model, **values)),
        sft=replace(cfg.sft, model=replace(cfg.sft.model, **values)),
    )


SAME: tuple[Change, ...] = (
    (
        "dtype=bfloat16 (actor, critic and sft.model)",
        lambda cfg: _with_models(cfg, dtype="bfloat16"),
    ),
    (
        "micro_batch_size_per_gpu=1 actor_rollout_ref.actor.use_dynamic_bsz=false",
        _small_micro_batches,
    ),
    (
        "sft.data.micro_batch_size_per_gpu=1 sft.data.max_token_len_per_gpu=null",
        _small_sft_micro_batches,
    ),
    (
        "enable_gradient_checkpointing=true (actor, critic and sft.model)",
        lambda cfg: _with_models(cfg, enable_gradient_checkpointing=True),
    ),
    (
        f"actor_rollout_ref.rollout.name=vllm and .max_num_seqs={SEQUENCES}",
        _fewer_sequences,
    ),
)
# These changes also alter the result: an update sees fewer examples, only adapters are trained, or
# another estimator is used.
OTHER: tuple[Change, ...] = (
    ("es_manager.train.env_groups=16 (fewer puzzles per step)", _fewer_puzzles),
    (
        "lora.rank=64",
        lambda cfg: _with_models(cfg, lora_rank=64),
    ),
    (
        "algorithm.adv_estimator=grpo (no critic)",
        lambda cfg: replace(cfg, algorithm=replace(cfg.algorithm, adv_estimator="grpo")),
    ),
)

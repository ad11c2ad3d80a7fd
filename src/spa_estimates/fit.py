"""Estimate a run before it starts: memory per GPU, time and disk space. Also find changes of the
configuration that make it fit, and print the command to run.

`spa doctor --fit CONFIG` prints the estimates for given GPUs, `spa run CONFIG --dry-run` for this
machine.
"""

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, Literal

import torch

from spa.algo.estimators import estimator_named
from spa.config.hardware import clamp_to_hardware, threads_of
from spa.config.load import load_config
from spa.config.schema import ActorConfig, Config, CriticConfig
from spa.config.schema_models import FSDPConfig
from spa.config.stages import STAGES, StageName
from spa.distributed.world import current_world
from spa.errors import SpaError
from spa.models import memory
from spa.models.build import is_tiny
from spa.models.memory import FULL, HALF, ModelShape
from spa.models.precision import on_cpu, precision_of, with_precision
from spa.recipes.ppo_models import keys_of
from spa.recipes.rounds import rounds_of
from spa.recipes.token_budget import (
    USABLE,
    held_by_engine,
    kept_by_engine,
    kept_in_ppo,
    kept_in_sft,
    shape_of,
    with_token_budgets,
)
from spa.run.announce import duration
from spa.run.console import write_out
from spa_estimates.hours import CHARACTERS, TINY_CHARACTERS, StageTime, stage_times
from spa_estimates.speed import Machine, card_for, gpus, this_cpu

GB = 1e9
# GPU memory to assume if this machine has no GPU: 80 GB, as in an A100 or H100.
DEFAULT_GB = 80.0
BYTES_OF_TOKEN = 40  # bytes per token in `trajectories/`: text, ids and log-probs (measured)
SEQUENCES = 64  # `max_num_seqs` that the advice suggests for vLLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A phase of a run and its memory use in bytes, by component."""

    stage: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        """Total memory in bytes."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The hardware of a run."""

    count: int  # number of GPUs; 0 for this machine's CPU
    memory_gb: float  # memory of each GPU, or main memory
    said: str  # describes the source of `memory_gb`
    name: str = ""  # CUDA's name of the GPU

    @property
    def gpu_bytes(self) -> float | None:
        """Memory of each GPU in bytes, or None on the CPU."""
        return self.memory_gb * GB if self.count else None

    @property
    def ranks(self) -> int:
        """Number of processes of a run."""
        return max(self.count, 1)

    def machine(self, cfg: Config) -> Machine:
        """Return the speed of this hardware. It depends on the engine of `cfg` and, on a CPU, on
        its precision and threads."""
        if self.count:
            card = card_for(self.memory_gb, self.name)
            return gpus(card, self.count, vllm=cfg.actor_rollout_ref.rollout.name == "vllm")
        dtype = precision_of(cfg)["actor_rollout_ref.model.dtype"]
        threads = threads_of(cfg) or torch.get_num_threads()
        return this_cpu(torch.bfloat16 if dtype == "bfloat16" else torch.float32, threads)

    def line(self) -> str:
        """Describe the hardware, for example as `2 GPUs with 80 GB each (as given)`."""
        if not self.count:
            return f"no GPU, {self.memory_gb:.0f} GB of main memory"
        plural = "s" if self.count > 1 else ""
        each = " each" if self.count > 1 else ""
        many = f"{self.count} GPU{plural}" if self.count > 1 else "GPU"
        return f"{many} with {self.memory_gb:.0f} GB{each} ({self.said})"


def report_fit(
    config: str,
    overrides: Sequence[str],
    *,
    model: str | None = None,
    count: int = 1,
    gpu_gb: float | None = None,
) -> int:
    """Print the estimated memory, time and disk space, and the command to run. Return 0 if the
    configuration fits without changes, else 1.

    `gpu_gb` is the memory of each of `count` GPUs, by default that of this machine's GPU. Raises
    SpaError if the configuration or the model cannot be loaded.
    """
    own = [*overrides, *([f"model_path={model}"] if model else [])]
    cfg = load_config(config, own)
    size, said, name = (gpu_gb, "as given", "") if gpu_gb else gpu_memory()
    place = Place(count=count, memory_gb=size, said=said, name=name)
    shape = shape_of(cfg.model_path, code=cfg.actor_rollout_ref.model.trust_remote_code)
    tight = not all_fit(with_token_budgets(cfg, place.gpu_bytes, place.ranks), shape, place)
    write_out("\n".join(fit_lines(cfg, shape, place, [config, *own])) + "\n")
    return 1 if tight else 0


def lines_here(
    cfg: Config, model: str, arguments: Sequence[str], stages: Collection[StageName]
) -> Iterator[str]:
    """Describe the resources that stages need on this machine if they start from `model`.
    `arguments` are those of `fit_lines`."""
    try:
        shape = shape_of(model, code=cfg.actor_rollout_ref.model.trust_remote_code)
    # The configuration can be valid even if a model on the Hub cannot be reached from here.
    except SpaError as error:
        yield f"Memory and time are unknown: {error}"
        return
    place = this_machine(cfg)
    cfg = with_precision(clamp_to_hardware(cfg, gpus=place.count)[0], precision_of(cfg))
    yield from fit_lines(cfg, shape, place, arguments, stages=stages)


def fit_lines(
    cfg: Config,
    shape: ModelShape,
    place: Place,
    arguments: Sequence[str],
    *,
    stages: Collection[StageName] = STAGES,
) -> Iterator[str]:
    """Describe the resources that stages need on the hardware `place`. `arguments` are the
    configuration and the overrides of the printed command."""
    millions = shape.parameters / 1e6
    size = f"{millions / 1e3:.2f} billion" if millions > 100 else f"{millions:.1f} million"
    other = "ddp" if _strategy(cfg) == SHARDED else "fsdp"
    otherwise = with_token_budgets(_with_strategy(cfg, other), place.gpu_bytes, place.ranks)
    asked, cfg = cfg, with_token_budgets(cfg, place.gpu_bytes, place.ranks)
    yield f"{cfg.model_path}: {size} parameters; {place.line()}"
    yield ""
    yield from _memory_lines(cfg, shape, place, stages)
    if place.count > 1:
        peak = _peak(otherwise, shape, place, stages)
        yield f"With strategy={other}, the peak is {peak:.1f} GB."
    needed, enough = changes(cfg, shape, place, stages) if place.count else ([], True)
    if not enough:
        return
    # Time and disk space are estimated for the printed command, whose changes lead to other token
    # budgets.
    for change in needed:
        asked = change.apply(asked)
    cfg = with_token_budgets(asked, place.gpu_bytes, place.ranks)
    yield ""
    times = stage_times(cfg, shape, place.machine(cfg), stages=stages, characters=_characters(cfg))
    yield from _time_lines(cfg, shape, place, times, stages)
    yield ""
    # `disk` also counts the checkpoint that is written before the oldest one is deleted.
    kept = disk(cfg, shape, stages) / GB
    logged = BYTES_OF_TOKEN * sum(time.tokens for time in times) / GB
    yield f"Disk: up to {kept:.2f} GB for checkpoints and {logged:.2f} GB for episodes (estimate)."
    yield ""
    count = place.count if cfg.launcher == "local" else 1  # Ray starts its workers itself
    yield f"Command: {command(arguments, max(count, current_world().size), needed)}"
    if changed := [change.text for change in needed if not change.same]:
        yield f"It changes the algorithm: {'; '.join(changed)}."


def tokens_of_micro_batches(cfg: Config, stages: Collection[StageName]) -> str:
    """Describe the micro-batch limits of SFT, policy and critic, in tokens or sequences. Empty if
    no stage trains."""
    data = cfg.sft.data
    parts = {}
    if "sft" in stages:
        rows = f"{data.micro_batch_size_per_gpu} sequence(s)"
        parts["SFT"] = data.max_token_len_per_gpu or rows
    if "ppo" in stages:
        for name, part in (("policy", cfg.actor_rollout_ref.actor), ("critic", cfg.critic)):
            rows = f"{part.ppo_micro_batch_size_per_gpu} sequence(s)"
            parts[name] = part.ppo_max_token_len_per_gpu if part.use_dynamic_bsz else rows
    return ", ".join(f"{name} {value}" for name, value in parts.items())


def _characters(cfg: Config) -> float:
    """Return the number of characters per token in prompts. It is larger for the bundled model,
    whose tokens are whole phrases."""
    return TINY_CHARACTERS if is_tiny(cfg.model_path) else CHARACTERS


def _memory_lines(
    cfg: Config, shape: ModelShape, place: Place, stages: Collection[StageName]
) -> Iterator[str]:
    size = place.memory_gb
    found = phases(cfg, shape, place.ranks, gpu_gb=size, stages=stages)
    if not place.count:
        largest = max(found, key=lambda phase: phase.total)
        yield f"Memory: up to {largest.total / GB:.1f} GB ({largest.stage}; estimate)"
        if not fits(largest, size):
            yield "This does not fit. See docs/scaling.md for settings that take less memory."
        return
    if place.count > 1:
        yield f"Memory of each GPU, {_strategy(cfg)}:"
    for phase in found:
        mark = " " if fits(phase, size) else "!"
        yield f"{mark} {phase.stage:<14} {phase.total / GB:7.1f} GB"
        for name, value in phase.parts.items():
            if value:
                yield f"      {name:<34} {value / GB:7.1f} GB"
    yield ""
    if tokens := tokens_of_micro_batches(cfg, stages):
        yield f"Tokens of a micro-batch: {tokens}"
        yield ""
    if all(fits(phase, size) for phase in found):
        yield "The configuration fits."
    else:
        yield (
            "The configuration does not fit. Apply these changes in order; each line includes the "
            "changes above it:"
        )
        yield from advice(cfg, shape, size, ranks=place.ranks, stages=stages)
    yield ""
    yield margin(size)


def _peak(
    cfg: Config, shape: ModelShape, place: Place, stages: Collection[StageName] = STAGES
) -> float:
    """Return the memory of the largest phase in GB."""
    own = phases(cfg, shape, place.ranks, gpu_gb=place.memory_gb, stages=stages)
    return max(phase.total for phase in own) / GB


def _time_lines(
    cfg: Config,
    shape: ModelShape,
    place: Place,
    times: Sequence[StageTime],
    stages: Collection[StageName],
) -> Iterator[str]:
    yield f"Time (estimate, {place.machine(cfg).source}):"
    for time in times:
        known = "unknown" if time.seconds is None else duration(time.seconds)
        yield f"  {NAMES[time.stage]:<10} {known:<18} {time.work}"
    total = sum(time.seconds or 0.0 for time in times)
    if len(times) > 1:
        unknown = [NAMES[time.stage] for time in times if time.seconds is None]
        without = f"without {' and '.join(unknown)}" if unknown else ""
        yield f"  {'total':<10} {duration(total):<18} {without}".rstrip()
    if not place.count and total > LONG_S:
        yield (
            "  Warning: this machine has no GPU. For an estimate on GPUs, run: spa doctor --fit "
            "CONFIG --gpus N --gpu-memory GB"
        )
    if place.count and "ppo" in stages and cfg.actor_rollout_ref.rollout.name != "vllm":
        faster = _with_engine(cfg, "vllm")
        ppo = stage_times(faster, shape, place.machine(faster), stages=["ppo"])[0]
        yield (
            f"  With vLLM (actor_rollout_ref.rollout.name=vllm), PPO takes {duration(ppo.seconds or 0)} and "
            f"{_peak(faster, shape, place, stages):.1f} GB."
        )


NAMES = {"selfplay": "self-play", "sft": "SFT", "ppo": "PPO"}
LONG_S = 24 * 3600.0
SHARDED, WHOLE = "sharded (strategy=fsdp)", "whole copies (strategy=ddp)"


def _strategy(cfg: Config) -> str:
    return WHOLE if cfg.actor_rollout_ref.actor.strategy == "ddp" else SHARDED


def command(arguments: Sequence[str], count: int, needed: Sequence["Change"]) -> str:
    """Return the command to run: `spa run`, or torchrun for several GPUs, with the overrides of the
    necessary changes."""
    run = f"torchrun --nproc-per-node {count} -m spa run" if count > 1 else "spa run"
    return f"{run} {shlex.join([*arguments, *(one for change in needed for one in change.keys)])}"


def disk(cfg: Config, shape: ModelShape, stages: Collection[StageName] = STAGES) -> int:
    """Return the size in bytes of all checkpoints that stages keep. One more per stage is counted,
    because a new checkpoint is written before the oldest is deleted."""
    # Adam keeps two numbers for each trained parameter.
    rank = cfg.actor_rollout_ref.model.lora_rank
    trained = memory.adapter_parameters(shape, rank) if rank else shape.parameters
    each = FULL * (shape.parameters + 2 * trained)
    critic = estimator_named(cfg.algorithm.adv_estimator, keys_of(cfg.algorithm)).needs_values
    own, sft = cfg.trainer, cfg.sft.trainer
    total = 0
    if "ppo" in stages:
        saves = ceil(own.total_training_steps / own.save_freq) if own.save_freq > 0 else 1
        total += each * (2 if critic else 1) * (min(own.max_actor_ckpt_to_keep or saves, saves) + 1)
    if "sft" in stages:
        # Without `save_freq`, SFT saves after each epoch.
        saves = sft.total_epochs
        if sft.save_freq and sft.total_training_steps:
            saves = ceil(sft.total_training_steps / sft.save_freq)
        total += each * (min(sft.keep or saves, saves) * len(rounds_of(cfg, Path(), Path())) + 1)
    return total


def this_machine(cfg: Config) -> Place:
    """Return the hardware that a command started on this machine uses: its GPUs, or the CPU."""
    from spa.commands.doctor import memory as main_memory

    if on_cpu(cfg):
        return Place(count=0, memory_gb=main_memory()[0] / GB, said="")
    gb, said, name = gpu_memory()
    trainer = cfg.trainer
    hosts = trainer.nnodes if cfg.launcher == "ray" else 1
    count = trainer.n_gpus_per_node * hosts
    return Place(count=count, memory_gb=gb, said=said, name=name)


def gpu_memory() -> tuple[float, str, str]:
    """Return the memory of this machine's first GPU in GB, the source of that number, and the GPU's
    name. Without a GPU, the memory is `DEFAULT_GB` and the name ""."""
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        return torch.cuda.get_device_properties(0).total_memory / GB, name, name
    return DEFAULT_GB, "assumed; set --gpu-memory", ""


def fits(phase: Phase, gpu_gb: float) -> bool:
    """Return whether a phase fits into the usable share of `gpu_gb` GB, of a GPU or of main
    memory."""
    return phase.total <= USABLE * gpu_gb * GB


def margin(gpu_gb: float) -> str:
    """Explain how much memory the estimate leaves free on a GPU."""
    free = (1 - USABLE) * gpu_gb
    return (
        f"Margin: {USABLE * gpu_gb:.1f} of {gpu_gb:.0f} GB count as usable. The other {free:.1f} GB "
        "are reserved for the CUDA context,\n"
        "for kernel workspace and for memory fragmentation. The estimates are accurate to about 25 %."
    )


def all_fit(
    cfg: Config, shape: ModelShape, place: Place, stages: Collection[StageName] = STAGES
) -> bool:
    """Return whether every phase of `stages` fits into the memory of `place`."""
    size = place.memory_gb
    own = phases(cfg, shape, place.ranks, gpu_gb=size, stages=stages)
    return all(fits(phase, size) for phase in own)


def phases(
    cfg: Config,
    shape: ModelShape,
    ranks: int = 1,
    *,
    gpu_gb: float = 0.0,
    stages: Collection[StageName] = STAGES,
) -> list[Phase]:
    """Return the phases of `stages` with their memory use on the first of `ranks` GPUs, which have
    `gpu_gb` GB each. PPO has two phases, playing and updating."""
    rollout = cfg.actor_rollout_ref.rollout
    actor = cfg.actor_rollout_ref.actor
    model = cfg.actor_rollout_ref.model
    sft = cfg.sft
    played = held_by_engine(cfg, shape, ranks)
    kept = kept_in_ppo(cfg, shape, ranks)
    # Only an estimator that needs values has a critic.
    critic = estimator_named(cfg.algorithm.adv_estimator, keys_of(cfg.algorithm)).needs_values
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
    # With a known GPU size, `auto` has already been resolved to a number of tokens or to null (see
    # token_budget).
    sft_tokens = sft.data.max_token_len_per_gpu
    if not isinstance(sft_tokens, int):
        sft_tokens = sft.data.micro_batch_size_per_gpu * sft.data.max_length
    # With vLLM only the engine's copy of the weights is loaded in self-play, since no update
    # follows.
    weights = 0 if rollout.name == "vllm" else FULL * shape.parameters
    every = [
        Phase(
            stage="self-play",
            parts={"policy (weights)": weights, **played},
        ),
        Phase(
            stage="fine-tuning",
            parts={
                **kept_in_sft(cfg, shape, ranks),
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
                **kept_by_engine(cfg, shape, gpu_gb * GB, ranks),
                "activations": max(updates),
                "logits": memory.logits(),
            },
        ),
    ]
    own: tuple[StageName, ...] = ("selfplay", "sft", "ppo", "ppo")
    return [phase for stage, phase in zip(own, every, strict=True) if stage in stages]


def _width(dtype: str) -> int:
    """Return the number of bytes per value in this precision."""
    return FULL if dtype == "float32" else HALF


def _tokens(part: ActorConfig | CriticConfig, longest: int) -> int:
    """Return the maximum number of tokens in a micro-batch. This is the token limit if batches are
    dynamic. Otherwise it is the number of sequences times `longest`, their maximum length."""
    if part.use_dynamic_bsz is True:
        return part.ppo_max_token_len_per_gpu
    return part.ppo_micro_batch_size_per_gpu * longest


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A configuration change that reduces memory."""

    text: str  # description
    keys: tuple[str, ...]  # overrides that make the change
    apply: Callable[[Config], Config]  # returns the changed configuration
    same: bool  # True if the algorithm stays the same


def changes(
    cfg: Config, shape: ModelShape, place: Place, stages: Collection[StageName] = STAGES
) -> tuple[list[Change], bool]:
    """Collect helpful changes until every phase fits. They are tried in the order of `CHANGES`, in
    which changes that keep the algorithm come first. Returns the changes, and whether every phase
    then fits."""
    needed = []
    for change in CHANGES:
        if all_fit(cfg, shape, place, stages):
            break
        if _lowered(cfg, change, shape, place.memory_gb, place.ranks, stages):
            cfg = change.apply(cfg)
            needed.append(change)
    return needed, all_fit(cfg, shape, place, stages)


def _lowered(
    cfg: Config,
    change: Change,
    shape: ModelShape,
    gpu_gb: float,
    ranks: int,
    stages: Collection[StageName],
) -> list[tuple[Phase, Phase]]:
    """Return (before, after) for each phase that is too large and that a change makes smaller."""
    pairs = zip(
        *(
            phases(each, shape, ranks, gpu_gb=gpu_gb, stages=stages)
            for each in (cfg, change.apply(cfg))
        ),
        strict=True,
    )
    return [
        (before, after)
        for before, after in pairs
        if not fits(before, gpu_gb) and after.total < before.total
    ]


def advice(
    cfg: Config,
    shape: ModelShape,
    gpu_gb: float,
    *,
    ranks: int = 1,
    stages: Collection[StageName] = STAGES,
) -> Iterator[str]:
    """Describe changes that make every phase fit, beginning with those that keep the algorithm.
    Skips changes that do not shrink any phase that is too large."""
    for heading, same in (("Same algorithm", True), ("Other algorithm", False)):
        yield f"  {heading}:"
        helped = False
        for change in CHANGES:
            if change.same is not same or not (
                lower := _lowered(cfg, change, shape, gpu_gb, ranks, stages)
            ):
                continue
            helped = True
            cfg = change.apply(cfg)
            before, after = max(lower, key=lambda pair: pair[0].total)
            yield (
                f"    {change.text:<74} {before.stage} {before.total / GB:.1f} -> "
                f"{after.total / GB:.1f} GB"
            )
            own = phases(cfg, shape, ranks, gpu_gb=gpu_gb, stages=stages)
            if all(fits(phase, gpu_gb) for phase in own):
                return
        if not helped:
            yield "    no other setting saves memory"
        if same and ranks == 1:
            yield "    on several GPUs, set strategy=fsdp and fsdp_config.offload_policy=true"
    yield (
        "  use a smaller model or a GPU with more memory, because no setting reduces the remaining "
        "memory"
    )


# Smaller micro-batches change only the time. Dynamic batches are turned off, because they limit
# tokens instead of sequences.
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
    """Return the configuration with these values in the model sections of policy, critic and
    SFT."""
    arr = cfg.actor_rollout_ref
    return replace(
        cfg,
        actor_rollout_ref=replace(arr, model=replace(arr.model, **values)),
        critic=replace(cfg.critic, model=replace(cfg.critic.model, **values)),
        sft=replace(cfg.sft, model=replace(cfg.sft.model, **values)),
    )


def _with_engine(cfg: Config, name: Literal["local", "vllm"]) -> Config:
    arr = cfg.actor_rollout_ref
    return replace(cfg, actor_rollout_ref=replace(arr, rollout=replace(arr.rollout, name=name)))


def _with_strategy(cfg: Config, strategy: Literal["ddp", "fsdp"]) -> Config:
    """Return the configuration with this strategy for all models."""
    arr = cfg.actor_rollout_ref
    return replace(
        cfg,
        actor_rollout_ref=replace(
            arr,
            actor=replace(arr.actor, strategy=strategy),
            ref=replace(arr.ref, strategy=strategy),
        ),
        critic=replace(cfg.critic, strategy=strategy),
        sft=replace(cfg.sft, model=replace(cfg.sft.model, strategy=strategy)),
    )


def _offloaded(cfg: Config) -> Config:
    """Return the configuration with all shards offloaded to the CPU."""

    def off(options: FSDPConfig) -> FSDPConfig:
        return replace(options, offload_policy=True)

    arr, critic, sft = cfg.actor_rollout_ref, cfg.critic, cfg.sft
    return replace(
        cfg,
        actor_rollout_ref=replace(
            arr,
            actor=replace(arr.actor, fsdp_config=off(arr.actor.fsdp_config)),
            ref=replace(arr.ref, fsdp_config=off(arr.ref.fsdp_config)),
        ),
        critic=replace(
            critic, model=replace(critic.model, fsdp_config=off(critic.model.fsdp_config))
        ),
        sft=replace(sft, model=replace(sft.model, fsdp_config=off(sft.model.fsdp_config))),
    )


# The last three also change results: they reduce the episodes per update, train only adapters, or
# replace the advantage estimator.
CHANGES: tuple[Change, ...] = (
    Change(
        text="dtype=bfloat16 (actor, critic and sft.model)",
        keys=("actor_rollout_ref.model.dtype=bfloat16",),
        apply=lambda cfg: _with_models(cfg, dtype="bfloat16"),
        same=True,
    ),
    Change(
        text="micro_batch_size_per_gpu=1 actor_rollout_ref.actor.use_dynamic_bsz=false",
        keys=("micro_batch_size_per_gpu=1", "actor_rollout_ref.actor.use_dynamic_bsz=false"),
        apply=_small_micro_batches,
        same=True,
    ),
    Change(
        text="sft.data.micro_batch_size_per_gpu=1 sft.data.max_token_len_per_gpu=null",
        keys=("sft.data.micro_batch_size_per_gpu=1", "sft.data.max_token_len_per_gpu=null"),
        apply=_small_sft_micro_batches,
        same=True,
    ),
    Change(
        text="enable_gradient_checkpointing=true (actor, critic and sft.model)",
        keys=(
            "actor_rollout_ref.model.enable_gradient_checkpointing=true",
            "critic.model.enable_gradient_checkpointing=true",
            "sft.model.enable_gradient_checkpointing=true",
        ),
        apply=lambda cfg: _with_models(cfg, enable_gradient_checkpointing=True),
        same=True,
    ),
    Change(
        text=f"actor_rollout_ref.rollout.name=vllm and .max_num_seqs={SEQUENCES}",
        keys=(
            "actor_rollout_ref.rollout.name=vllm",
            f"actor_rollout_ref.rollout.max_num_seqs={SEQUENCES}",
        ),
        apply=_fewer_sequences,
        same=True,
    ),
    Change(
        text="fsdp_config.offload_policy=true (actor, reference, critic and sft.model)",
        keys=(
            "actor_rollout_ref.actor.fsdp_config.offload_policy=true",
            "actor_rollout_ref.ref.fsdp_config.offload_policy=true",
            "critic.model.fsdp_config.offload_policy=true",
            "sft.model.fsdp_config.offload_policy=true",
        ),
        apply=_offloaded,
        same=True,
    ),
    Change(
        text="es_manager.train.env_groups=16 (fewer puzzles per step)",
        keys=("es_manager.train.env_groups=16",),
        apply=_fewer_puzzles,
        same=False,
    ),
    Change(
        text="lora.rank=64",
        keys=("lora.rank=64",),
        apply=lambda cfg: _with_models(cfg, lora_rank=64),
        same=False,
    ),
    Change(
        text="algorithm.adv_estimator=grpo (no critic)",
        keys=("algorithm.adv_estimator=grpo",),
        apply=lambda cfg: replace(cfg, algorithm=replace(cfg.algorithm, adv_estimator="grpo")),
        same=False,
    ),
)

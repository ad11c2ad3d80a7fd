"""Where a stage goes on, and whether it may: the checkpoint to start from, and the settings that must not have changed.

A run may be made longer, saved or validated more or less often, moved to other hardware or cut into other
micro-batches at any time. Whatever its results depend on stays as it was when the stage began.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from spa.config.schema import Config
from spa.distributed.world import World, current_world
from spa.errors import ConfigError, ModelError
from spa.recipes.copies import mirror_of
from spa.signals import StopRequested, stop_asked, stop_now, stoppable, uninterrupted
from spa.tracking.encoding import jsonable
from spa.tracking.lock import run_lock
from spa.training.checkpoint import archive_later_checkpoints, damage, latest_checkpoint, load_state, step_of
from spa.types import Metrics

Stage = Literal["generate", "sft", "ppo"]

READ: dict[Stage, tuple[str, ...]] = {
    "generate": (
        "model_path",
        "state_text",
        "seed",
        "agent_proxy.max_turn",
        "agent_proxy.action_sep",
        "agent_proxy.max_actions_per_turn",
        "agent_proxy.enable_think",
        "es_manager",
        "ctx_manager.example",
        "custom_envs",
        "generate",
        "actor_rollout_ref.model.dtype",
        "actor_rollout_ref.model.chat_template",
        "actor_rollout_ref.rollout.name",
        "actor_rollout_ref.rollout.dtype",
        "actor_rollout_ref.rollout.max_model_len",
        "trainer.validation_steps",  # how many puzzles are held out
    ),
    "sft": (
        "model_path",
        "data",
        "sft.data",
        "sft.model",
        "sft.optim",
        "sft.trainer.seed",
        "sft.trainer.total_epochs",
        "sft.trainer.total_training_steps",
        "actor_rollout_ref.model.chat_template",
    ),
    "ppo": (
        "model_path",
        "state_text",
        "seed",
        "agent_proxy",
        "es_manager",
        "ctx_manager",
        "custom_envs",
        "actor_rollout_ref",
        "critic",
        "algorithm",
        "trainer.validation_steps",
        "trainer.critic_warmup",
        "trainer.total_training_steps",  # only if the learning rate has an end to go to
    ),
}
"""What the results of a stage depend on; `FREE` is left out of it."""

FREE = frozenset(
    {
        # how the work is cut: memory and speed
        "micro_batch_size_per_gpu",
        "ppo_micro_batch_size_per_gpu",
        "forward_micro_batch_size_per_gpu",
        "log_prob_micro_batch_size_per_gpu",
        "use_dynamic_bsz",
        "ppo_max_token_len_per_gpu",
        "max_token_len_per_gpu",
        "enable_gradient_checkpointing",
        "use_torch_compile",
        "attn_implementation",
        "strategy",
        "fsdp_config",
        "packing",
        "gpu_memory_utilization",
        "enforce_eager",
        "free_cache_engine",
        "enable_chunked_prefill",
        "tensor_model_parallel_size",
        "max_num_seqs",
        "max_num_batched_tokens",
        "engine_kwargs",
        "env_timeout_s",
        "env_workers",
        "trust_remote_code",
        # copies of other keys, and places
        "path",
        "output_dir",
    }
)


@contextmanager
def run_context(directory: Path) -> Iterator[None]:
    """The directory is this run's alone, and SIGTERM and Ctrl-C end the work where nothing is lost. Of several ranks
    the first takes the lock, and none stops by itself: see `stop_together`."""
    world = current_world()
    with (
        stoppable(),
        run_lock(directory) if world.is_main else nullcontext(),
        uninterrupted() if world.size > 1 else nullcontext(),
    ):
        yield
        stop_together(world)


def stop_together(world: World) -> None:
    """Between two steps: if any of several ranks was asked to stop, all of them do."""
    if world.size > 1 and world.any(stop_asked()):
        stop_now()


def resume_point(cfg: Config, stage: Stage, directory: Path, *, named: str | None = None) -> Path | None:
    """The checkpoint that a stage in `directory` goes on from, None for a beginning; later ones are set aside.

    `named` is the checkpoint of `resume_mode: resume_path`. It counts until the run has checkpoints of its own that
    began there, so that the same command can be given again after a crash.

    Rank 0 looks and all ranks hear of it. Raises ConfigError if settings have changed that the results depend on,
    ModelError if `named` cannot be used.
    """
    found = current_world().broadcast(lambda: str(_resume_point(cfg, stage, directory, named) or ""))
    return Path(found) if found else None


def _resume_point(cfg: Config, stage: Stage, directory: Path, named: str | None) -> Path | None:
    anew, mirror = cfg.trainer.resume_mode == "disable", mirror_of(cfg, directory)
    found = None if anew else latest_checkpoint(directory)
    if found is None and mirror is not None and named is None and not anew:
        found = mirror.fetch(directory)
    if named is not None and (found is None or origin_of(found).get("resumed_from") != os.path.abspath(named)):
        found = _usable(Path(named).expanduser())
    if found is not None and found.parent == directory:
        check_unchanged(cfg, stage, directory)
    archive_later_checkpoints(directory, step_of(found) if found is not None else -1)
    return found


def _usable(folder: Path) -> Path:
    problem = damage(folder) or ("" if (folder / "state").is_dir() else "it has no state/ folder")
    if problem:
        raise ModelError(
            f"{folder}: training cannot go on from here ({problem}). Give a folder global_step_N that spa has written, "
            "or start from its weights with model_path=FOLDER."
        )
    return folder


def origin_of(folder: Path) -> Mapping[str, Any]:
    """What the run that wrote a checkpoint began with; empty if it does not say."""
    return load_state(folder).get("origin", {}) if (folder / "state" / "state.json").is_file() else {}


def check_origin(resume: Path, origin: Mapping[str, Any]) -> None:
    """Raise ConfigError if the run at `resume` began with another model or other data than `origin` says."""
    known = origin_of(resume)
    changed = {key: (known[key], value) for key, value in origin.items() if key in known and known[key] != value}
    if changed:
        raise _refused(resume.parent, changed)


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a stage has come."""

    step: int = 0  # the last step that the weights have seen
    saved: int = 0  # the step of the last checkpoint
    unlogged: Metrics | None = None  # what there is to say about `step` while its line is not written
    origin: dict[str, str] = field(default_factory=dict)  # what the stage began with

    @classmethod
    def begin(cls, resume: Path | None, directory: Path, origin: dict[str, str]) -> "Progress":
        """At the beginning, or at the checkpoint `resume`. Raises ConfigError if `directory` began with another model
        or other data than `origin` says."""
        if resume is None:
            return cls(origin=origin)
        if resume.parent == directory:
            check_origin(resume, origin)
            origin = {**origin, **origin_of(resume)}
        else:
            origin = {**origin, "resumed_from": os.path.abspath(resume)}
        step = step_of(resume)
        return cls(step=step, saved=step, unlogged=load_state(resume).get("unlogged"), origin=origin)

    def made(self, step: int, metrics: Metrics) -> None:
        """The weights have seen `step`; its line is still to be written."""
        self.step, self.unlogged = step, metrics

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"origin": self.origin} | ({"unlogged": self.unlogged} if self.unlogged is not None else {})


@contextmanager
def saved_when_stopped(progress: Progress, save: Callable[..., Path]) -> Iterator[None]:
    """A preemption checkpoint of the last step if the process is asked to stop between two regular ones."""
    try:
        yield
    except StopRequested as stop:
        with uninterrupted():
            if progress.step > progress.saved:
                stop.saved = str(save(preemption=True))
        raise


def model_origin(path: str, directory: Path) -> str:
    """A model's name or folder as a run remembers it: relative to its own folder, so that both may move together."""
    return os.path.relpath(path, directory) if Path(path).is_dir() else path


def check_unchanged(cfg: Config, stage: Stage, directory: Path) -> None:
    """Compare `directory/config.yaml`, which the stage began with, to `cfg`; raises ConfigError with what differs."""
    try:
        saved = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return  # an older or damaged record: nothing to compare with
    if not isinstance(saved, Mapping):
        return
    before, now = _relevant(saved, stage), _relevant(jsonable(cfg), stage)
    both = {key for key in {*before, *now} if key.startswith("custom_envs.") or (key in before and key in now)}
    changed = {key: (before.get(key), now.get(key)) for key in sorted(both) if before.get(key) != now.get(key)}
    if changed:
        raise _refused(directory, changed)


def _refused(directory: Path, changed: Mapping[str, tuple[Any, Any]]) -> ConfigError:
    lines = [f"{key}: {before!r} became {now!r}" for key, (before, now) in changed.items()]
    return ConfigError(
        "\n  ".join([f"{directory} was begun with other settings, and going on would mix two runs:", *lines])
        + "\nGive the old values, choose another folder with trainer.run_dir=FOLDER, or begin this stage anew with "
        "trainer.resume_mode=disable (what is there is set aside, not deleted)."
    )


def _relevant(tree: Mapping[str, Any], stage: Stage) -> dict[str, Any]:
    """Dotted key -> value of what the results of `stage` depend on; paths inside the run directory are relative."""
    trainer = tree.get("trainer") or {}
    root = os.path.abspath(str(trainer.get("run_dir", "")))
    played = {
        tag
        for part in ("train", "val")
        for tag in (((tree.get("es_manager") or {}).get(part) or {}).get("env_configs") or {}).get("tags") or ()
    }
    found = {}
    for key, value in _flat(tree, ""):
        if not _counts(key, stage, played, tree):
            continue
        if isinstance(value, str) and os.path.abspath(value).startswith(root + os.sep):
            value = os.path.relpath(os.path.abspath(value), root)
        found[key] = value
    return found


def _counts(key: str, stage: Stage, played: set[str], tree: Mapping[str, Any]) -> bool:
    if not _within(key, READ[stage]):
        return False
    if _within(key, ("custom_envs",)):
        return any(_within(key, (f"custom_envs.{tag}",)) for tag in played)
    if key == "trainer.total_training_steps":
        return _has_an_end(_flat(tree, ""))
    return not FREE & set(key.split("."))


def _has_an_end(items: list[tuple[str, Any]]) -> bool:
    """Whether the learning rates of PPO depend on the number of steps."""
    values = dict(items)
    optims = [
        {name: values.get(f"{part}.optim.{name}") for name in ("warmup_style", "lr_warmup_steps_ratio")}
        for part in ("actor_rollout_ref.actor", "critic")
    ]
    return any(optim["warmup_style"] == "cosine" or optim["lr_warmup_steps_ratio"] for optim in optims)


def _within(key: str, sections: tuple[str, ...]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def _flat(tree: Mapping[str, Any], path: str) -> list[tuple[str, Any]]:
    out = []
    for name, value in tree.items():
        key = f"{path}.{name}" if path else str(name)
        out += _flat(value, key) if isinstance(value, Mapping) else [(key, value)]
    return out

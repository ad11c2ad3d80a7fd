"""Where a stage goes on: the checkpoint that it starts from, and how far it has come."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spa.archive import archive_files
from spa.config.schema import Config
from spa.config.tree import to_plain
from spa.distributed.world import current_world
from spa.errors import ModelError
from spa.identity import Identity
from spa.prompts.template import ChatTemplate
from spa.recipes.copies import mirror_of
from spa.recipes.stage import DONE, archive_work, check_identity, record_identity, restore_record
from spa.signals import StopRequested, uninterrupted
from spa.tracking.recorder import Recorder
from spa.training.checkpoint import (
    archive_later_checkpoints,
    damage,
    latest_checkpoint,
    load_note,
    save_checkpoint,
    step_of,
)
from spa.training.mirror import Mirror
from spa.types import Metrics


def resume_point(
    identity: Identity, directory: Path, *, anew: bool = False, mirror: Mirror | None = None, named: str | None = None
) -> Path | None:
    """The checkpoint that a stage in `directory` goes on from, None for a beginning; later ones are archived.

    `anew`: everything that is there is archived. `named` is the checkpoint of `resume_mode: resume_path`. It counts
    until the run has checkpoints of its own that began there, so that the same command can be given again after a
    crash. `mirror` is asked where there is nothing.

    Rank 0 looks and all ranks hear of it. Raises ConfigError if what is there has another identity, ModelError if
    `named` cannot be used.
    """
    found = current_world().broadcast(lambda: str(_resume_point(identity, directory, anew, mirror, named) or ""))
    return Path(found) if found else None


def _resume_point(
    identity: Identity, directory: Path, anew: bool, mirror: Mirror | None, named: str | None
) -> Path | None:
    if anew:
        archive_work(directory)
    found = latest_checkpoint(directory)
    if found is None and mirror is not None and named is None and not anew:
        found = mirror.fetch(directory)
    if named is not None and (found is None or origin_of(found) != os.path.abspath(named)):
        found = _usable(Path(named).expanduser())
    if found is not None and found.parent == directory:
        check_identity([(directory, identity)])
        restore_record(found)
    elif (directory / DONE).exists():
        archive_files(directory, [directory / DONE])  # of a result that is gone
    archive_later_checkpoints(directory, step_of(found) if found is not None else -1)
    record_identity(directory, identity, kept=found is not None and found.parent == directory)
    return found


def begin(cfg: Config, directory: Path, identity: Identity, *, named: str | None) -> "tuple[Progress, Path | None]":
    """How far a stage is, and the checkpoint that it goes on from; see `resume_point`."""
    anew = cfg.trainer.resume_mode == "disable"
    resume = resume_point(identity, directory, anew=anew, mirror=mirror_of(cfg, directory), named=named)
    return Progress.begin(resume, directory, identity), resume


def recorder(cfg: Config, directory: Path, stage: str, *, first: int, total: int) -> Recorder:
    """The recorder of a stage of `total` steps that goes on after step `first`."""
    return Recorder(
        directory,
        stage=stage,
        config=cfg,
        loggers=cfg.trainer.logger,
        total_steps=total,
        enabled=current_world().is_main,
        resume_step=first or None,
        project=cfg.trainer.project_name,
        name=cfg.trainer.experiment_name,
        stall_timeout_s=cfg.trainer.stall_timeout_s,
        sample_episodes=to_plain(cfg.trainer.generations_to_log_to_wandb),
    )


def save(
    cfg: Config,
    directory: Path,
    progress: "Progress",
    *,
    model: Any,
    template: ChatTemplate,
    state: Mapping[str, Any],
    keep: int | None,
    critic: Any = None,
    preemption: bool = False,
) -> Path:
    """A checkpoint of everything that a stage needs to go on, gathered by all ranks and written by rank 0."""
    world = current_world()
    if world.is_main:
        save_checkpoint(
            directory,
            progress.step,
            model=model,
            tokenizer=template,
            critic=critic,
            state={**state, **progress.state()},
            keep=keep,
            preemption=preemption,
        )
        if mirror := mirror_of(cfg, directory):
            mirror.copy(directory, keep=keep)
    progress.saved = progress.step
    world.barrier()
    return directory / f"global_step_{progress.step}"


def _usable(folder: Path) -> Path:
    problem = damage(folder) or ("" if (folder / "state").is_dir() else "it has no state/ folder")
    if problem:
        raise ModelError(
            f"{folder}: training cannot resume from here ({problem}). Give a global_step_N folder written by spa, or "
            "start from its weights with model_path=FOLDER."
        )
    return folder


def origin_of(folder: Path) -> str | None:
    """The checkpoint of another run that the run of this one began with; None without one."""
    try:
        return load_note(folder, "resumed_from")
    except (OSError, ValueError, KeyError):
        return None


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far a stage has come."""

    step: int = 0  # the last step that the weights have seen
    saved: int = 0  # the step of the last checkpoint
    unlogged: Metrics | None = None  # what there is to say about `step` while its line is not written
    identity: Identity | None = None
    resumed_from: str | None = None  # the checkpoint of another run

    @classmethod
    def begin(cls, resume: Path | None, directory: Path, identity: Identity) -> "Progress":
        """At the beginning, or at the checkpoint `resume`."""
        if resume is None:
            return cls(identity=identity)
        origin = origin_of(resume) if resume.parent == directory else os.path.abspath(resume)
        step = step_of(resume)
        return cls(
            step=step, saved=step, unlogged=load_note(resume, "unlogged"), identity=identity, resumed_from=origin
        )

    def made(self, step: int, metrics: Metrics) -> None:
        """The weights have seen `step`; its line is still to be written."""
        self.step, self.unlogged = step, metrics

    def finished(self, total: int) -> bool:
        """Whether nothing is left to be done or written."""
        return self.step >= total and self.unlogged is None

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        kept = {"identity": self.identity and self.identity.to_json(), "resumed_from": self.resumed_from}
        return kept | ({"unlogged": self.unlogged} if self.unlogged is not None else {})


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

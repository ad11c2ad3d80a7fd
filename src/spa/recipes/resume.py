"""Where a stage goes on, and whether it may: the checkpoint to start from, and the identity that must not have changed.

What a stage's results depend on is its identity (`spa.identity`). It stands in the folder from the beginning
(`identity.json`), in every checkpoint and in the mark of a finished stage (`done.json`), and is compared at every
start. A run may be made longer, measured more or less often, moved to other hardware or cut into other micro-batches
at any time.
"""

import functools
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spa.archive import archive_files
from spa.config.schema import Config
from spa.config.stages import Stage
from spa.distributed.world import World, current_world
from spa.errors import ConfigError, DataError, ModelError
from spa.identity import (
    Identity,
    differences,
    file_content,
    file_sum,
    identity_of,
    read_identity,
    rounded_differently,
)
from spa.models.load import model_source
from spa.signals import StopRequested, stop_asked, stop_now, stoppable, uninterrupted
from spa.tracking.encoding import write_atomic
from spa.tracking.lock import run_lock
from spa.tracking.recorder import read_metrics
from spa.training.checkpoint import (
    MARKER,
    RECORD,
    archive_later_checkpoints,
    damage,
    kept_record,
    latest_checkpoint,
    load_note,
    step_of,
    steps_in,
)
from spa.training.mirror import Mirror
from spa.types import Metrics

log = logging.getLogger(__name__)

DONE, IDENTITY = "done.json", "identity.json"
DATA_FILES = "*.parquet"
_WORK = (
    "global_step_*", "extra_*", "metrics.jsonl", "timings.jsonl", "trajectories", "token_scores", "config.yaml",
    "gate.json", "summary.json", DATA_FILES, DONE, IDENTITY,
)  # fmt: skip
"""What a stage leaves in its folder; checkpoints alone are what SFT and PPO go on from."""


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


def stage_identity(cfg: Config, stage: Stage, *, parent: str | None = None, data: Path | None = None) -> Identity:
    """The identity of a stage that is about to start, the same on every rank. Models of the Hub are downloaded first.

    `data`: a data set without an identity of its own, which counts by its content.
    """

    def find() -> dict[str, Any]:
        name = cfg.sft.model.partial_pretrain if stage == "sft" else cfg.model_path
        if name not in cfg.model_info:
            with suppress(ModelError):  # said where it is loaded; some policies of self-play need no model
                model_source(name, code=cfg.actor_rollout_ref.model.trust_remote_code)
        found = identity_of(cfg, stage, parent=parent)
        if data is not None:
            found = replace(found, content={**found.content, "the data set": file_content(str(data))})
        return found.to_json()

    return Identity.from_json(current_world().broadcast(find))


def recorded_identity(directory: Path) -> Identity | None:
    """The identity of the work in a folder: that of its newest checkpoint that can be read, else of its mark or its
    beginning. None if there is no work, or no record of it."""
    for step in sorted(steps_in(directory), reverse=True):
        try:
            return Identity.from_json(load_note(directory / f"global_step_{step}", "identity"))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return read_identity(directory / DONE) or read_identity(directory / IDENTITY)


def changes(directory: Path, identity: Identity) -> dict[str, tuple[Any, Any]]:
    """What makes the work in a folder another one than `identity`: key -> (old, new). Empty if it is the same, or if
    there is none; what only rounds differently is said."""
    known = recorded_identity(directory)
    if known is None:
        return {"its record": ("missing or damaged", f"needed ({IDENTITY})")} if _has_work(directory, identity) else {}
    found = differences(known, identity)
    rounding = {} if found else rounded_differently(known, identity)
    if rounding:
        _say(f"{directory}: what is there was made with other settings for memory and speed or on another machine; at "
             f"most the last digits differ ({'; '.join(_lines(rounding))})")  # fmt: skip
    return found


@functools.cache
def _say(text: str) -> None:
    log.warning("%s", text)


def _has_work(directory: Path, identity: Identity) -> bool:
    """Whether there is something that a stage would go on from or reuse."""
    if (directory / DONE).is_file() or any(damage(directory / f"global_step_{n}") is None for n in steps_in(directory)):
        return True
    if identity.stage != "selfplay" or not directory.is_dir():
        return False
    return any(directory.glob(DATA_FILES)) or bool(read_metrics(directory / "metrics.jsonl"))


def check_identity(stages: Sequence[tuple[Path, Identity]]) -> None:
    """Raise ConfigError, one for all, if the work in a folder has another identity than the one beside it."""
    found = {directory: changed for directory, identity in stages if (changed := changes(directory, identity))}
    if not found:
        return
    if len(found) > 1:  # the stages after one that changed have changed through it
        found = {directory: {k: v for k, v in changed.items() if k != "the stage before it"}
                 for directory, changed in found.items()}  # fmt: skip
    changed = {key: f"{_text(old)},{_text(new)}" for part in found.values() for key, (old, new) in part.items()}
    settings = {key: pair for key, pair in changed.items() if re.fullmatch(r"[\w.]+", key) and "content " not in pair}
    keys = " ".join(f"{key}={pair}" for key, pair in settings.items()) or "KEY=OLD,NEW"
    raise ConfigError(
        "\n".join(
            [
                line
                for directory, changed in found.items()
                if changed
                for line in (f"{directory} holds the work of another configuration:", *_indented(_lines(changed)))
            ]
            + [
                "Nothing was changed. Give the old values, or choose:",
                "  another folder:  trainer.run_dir=FOLDER",
                "  anew:            trainer.resume_mode=disable, or spa run CONFIG last True for all stages; what is "
                "there is archived",
                f"  both compared:   spa try CONFIG {keys}",
            ]
        )
    )


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _lines(changed: Mapping[str, tuple[Any, Any]]) -> list[str]:
    return [f"{key}: {_text(old)} → {_text(new)}" for key, (old, new) in changed.items()]


def _text(value: Any) -> str:
    """A value as it is written in an override; a checksum by its beginning."""
    if isinstance(value, str):
        return f"content {value[:12]}" if re.fullmatch("[0-9a-f]{64}.*", value) else value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def read_mark(directory: Path) -> dict[str, Any]:
    """What done.json holds; empty if it cannot be read."""
    try:
        found = json.loads((directory / DONE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def result_of(directory: Path) -> Path | None:
    """What a finished stage returned, wherever the run has been moved to; None if it is not finished, or if its result
    has been removed or damaged since: then the stage has to be done again.

    Raises DataError if a data set is not the one that the stage wrote.
    """
    mark = read_mark(directory)
    if not isinstance(mark.get("result"), str):
        return None
    noted = Path(mark["result"])
    result = directory / noted
    if not result.exists() and directory.name in noted.parts:  # an older mark, with the place that the run had then
        result = directory.joinpath(*noted.parts[noted.parts.index(directory.name) + 1 :])
    problem = None if result.exists() else "it is gone"
    if problem is None and (step_of(result) or (result / MARKER).is_file()):
        problem = damage(result)
    for name, expected in mark.get("sha256", {}).items() if problem is None else ():
        if not (result / name).is_file():
            problem = f"{name} is gone"
        elif file_sum(result / name) != expected:
            raise DataError(
                f"{result / name} is not the file that the stage wrote. Put that back, or remove this one (it is made "
                f"again from what was played), or train on it under its own name: data.train_files=FILE data.val_files="
                "FILE."
            )
    if problem is not None:
        log.warning("%s cannot be used any more (%s); the stage is taken up again", result, problem)
        return None
    return result


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


def record_identity(directory: Path, identity: Identity, *, kept: bool) -> None:
    """Write what the work in a folder is; with `kept`, only if that is not written there."""
    if kept and read_identity(directory / IDENTITY) is not None:
        return
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / IDENTITY, [json.dumps({"identity": identity.to_json()}, indent=1)])


def restore_records(directory: Path) -> None:
    """Mend the records of a finished stage and of its extra rounds."""
    for folder in (directory, *sorted(directory.glob("extra_*"))):
        if steps := steps_in(folder):
            restore_record(folder / f"global_step_{max(steps)}")


def restore_record(checkpoint: Path) -> None:
    """Make the `metrics.jsonl` beside a checkpoint what the checkpoint counts on: later lines go, because their steps
    are made again, and lines that were damaged or lost come back from its own copy, which is said."""
    path, kept = checkpoint.parent / RECORD, kept_record(checkpoint)
    found = path.read_bytes() if path.is_file() else b""
    if kept is None or found == kept:
        return
    if not found.startswith(kept):
        there = set(found.splitlines())
        lost = ", ".join(str(json.loads(line)["step"]) for line in kept.splitlines() if line not in there)
        log.warning("%s: lines of steps %s were damaged or lost; restored from %s", path, lost or "?", checkpoint.name)
    write_atomic(path, [kept.decode()])


def archive_work(directory: Path) -> None:
    """Move everything that a stage left in its folder to `previous/<n>/`."""
    old = sorted(path for pattern in _WORK for path in directory.glob(pattern))
    if old:
        log.warning("archived in %s: %s", archive_files(directory, old), ", ".join(path.name for path in old))


def _usable(folder: Path) -> Path:
    problem = damage(folder) or ("" if (folder / "state").is_dir() else "it has no state/ folder")
    if problem:
        raise ModelError(
            f"{folder}: training cannot go on from here ({problem}). Give a folder global_step_N that spa has written, "
            "or start from its weights with model_path=FOLDER."
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

"""A stage's folder: whose work is in it, whether that is finished, and whether it may be gone on with.

What a stage's results depend on is its identity (`spa.identity`). It stands in the folder from the beginning
(`identity.json`), in every checkpoint and in the mark of a finished stage (`done.json`), and is compared at every
start. A run may be made longer, measured more or less often, moved to other hardware or cut into other micro-batches
at any time.
"""

import functools
import hashlib
import json
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from spa.archive import archive_files
from spa.config.fields import flatten
from spa.config.schema import Config
from spa.config.stages import Stage
from spa.distributed.world import World, current_world
from spa.envs.lost import LOST
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
from spa.signals import stop_asked, stop_now, stoppable, uninterrupted
from spa.tracking.encoding import read_object, write_atomic
from spa.tracking.lock import run_lock
from spa.tracking.recorder import read_metrics
from spa.training.checkpoint import MARKER, RECORD, damage, kept_record, load_note, step_of, steps_in

log = logging.getLogger(__name__)

DONE, IDENTITY = "done.json", "identity.json"
DATA_FILES = "*.parquet"
VALIDATIONS = "trajectories/val-*.jsonl"
_WORK = (
    "global_step_*", "extra_*", "metrics.jsonl", "timings.jsonl", "trajectories", "token_scores", "tensorboard",
    "config.yaml", "gate.json", "rounds.json", "summary.json", "played.json", "imagined", LOST, DATA_FILES, DONE,
    IDENTITY,
)  # fmt: skip
"""What a stage leaves in its folder; checkpoints alone are what SFT and PPO go on from."""
_UNCOPIED = ("gate.json", "summary.json")
"""Small records that decide or count something and that no checkpoint has a copy of: the mark has one."""


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
    """The identity of the work in a folder: that of its newest checkpoint whose state is whole, else of its mark or its
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
    if not _has_begun(directory):
        return {}
    known = recorded_identity(directory)
    if known is None:
        usable = identity.stage == "selfplay" or _has_result(directory)
        return {"its record": ("missing or damaged", f"needed ({IDENTITY})")} if usable else {}
    found = differences(known, identity)
    rounding = {} if found else rounded_differently(known, identity)
    if rounding:
        _say(f"{directory}: what is there was made with other settings for memory and speed or on another machine; at "
             f"most the last digits differ ({'; '.join(_lines(rounding))})")  # fmt: skip
    return found


@functools.cache
def _say(text: str) -> None:
    log.warning("%s", text)


def _has_begun(directory: Path) -> bool:
    """Whether anything was made in a folder. A start that failed, of a model that cannot be loaded, made nothing."""
    made = (directory / DONE, *directory.glob("global_step_*"), *directory.glob(DATA_FILES))
    return any(path.exists() for path in made) or bool(read_metrics(directory / "metrics.jsonl"))


def _has_result(directory: Path) -> bool:
    """Whether there is something that fine-tuning or PPO would go on from or reuse; self-play goes on from all."""
    return (directory / DONE).is_file() or any(
        damage(directory / f"global_step_{step}") is None for step in steps_in(directory)
    )


def check_identity(stages: Sequence[tuple[Path, Identity]]) -> None:
    """Raise ConfigError, one for all, if the work in a folder has another identity than the one beside it."""
    found = {directory: changed for directory, identity in stages if (changed := changes(directory, identity))}
    if not found:
        return
    known = {identity.digest: identity for _, identity in stages}
    for directory, identity in stages:
        if [*found.get(directory, ())] == ["the stage before it"]:
            found[directory] |= _earlier_changes(directory, known, known.get(identity.parent or ""))
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


def _earlier_changes(
    directory: Path, known: Mapping[str, Identity], before: Identity | None
) -> dict[str, tuple[Any, Any]]:
    """The settings of the stages before the one in `directory`, from `before` on, that its config.yaml has other values
    of: the folders of those stages may be gone. `known`: digest -> identity."""
    changed: dict[str, tuple[Any, Any]] = {}
    with suppress(OSError, yaml.YAMLError):
        old = flatten(yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8")) or {})
        while before is not None:
            pairs = {key: (old[key], value) for key, value in before.settings.items() if key in old}
            changed |= {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
            before = known.get(before.parent or "")
    return changed


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
    return read_object(directory / DONE)


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
        log.warning("%s cannot be used any more (%s); the stage is done again", result, problem)
        return None
    return result


def finished(directory: Path, identity: Identity, *, steps: int = 0, anew: bool = False) -> Path | None:
    """The result of a stage that is marked as done, if it is whole and has `steps` steps; None if there is work to be
    done, as there always is `anew`.

    Raises ConfigError if the folder holds work of another identity, before anything is written.
    """

    def find() -> str:
        check_identity([(directory, identity)])
        result = result_of(directory)
        if result is None:
            return ""
        restore_records(directory)
        return str(result)

    found = "" if anew else current_world().broadcast(find)
    return Path(found) if found and (steps == 0 or step_of(Path(found)) >= steps) else None


def mark_done(directory: Path, identity: Identity, result: Path, *, since: float) -> Path:
    """Write that a stage is done: its result, its identity, and the seconds `since` a reading of `time.monotonic`,
    besides those of the shorter run that it has made longer. Returns the result."""
    world = current_world()
    if world.is_main:
        before = read_mark(directory)
        spent = before.get("seconds", 0.0) if before.get("digest") == identity.digest else 0.0
        place = result.relative_to(directory) if result.is_relative_to(directory) else result
        mark = {
            "result": str(place),
            "seconds": round(spent + time.monotonic() - since, 1),
            "digest": identity.digest,
            "sha256": {path.name: file_sum(path) for path in sorted(result.glob(DATA_FILES))},
            "validations": {path.name: file_sum(path) for path in sorted(directory.glob(VALIDATIONS))},
            "identity": identity.to_json(),
        }
        names = [RECORD, *_UNCOPIED] if result == directory else _UNCOPIED
        texts = {name: (directory / name).read_text(encoding="utf-8") for name in names if (directory / name).is_file()}
        mark["kept"] = {name: _copy(text) for name, text in texts.items()}
        write_atomic(directory / DONE, [json.dumps(mark, indent=1)])
    world.barrier()
    return result


def keep_record(directory: Path, name: str) -> None:
    """Let the mark of a finished stage have a small record as it is now."""
    mark = read_mark(directory)
    if isinstance(mark.get("kept"), dict):
        mark["kept"][name] = _copy((directory / name).read_text(encoding="utf-8"))
        write_atomic(directory / DONE, [json.dumps(mark, indent=1)])


def _copy(text: str) -> dict[str, str]:
    return {"text": text, "sha256": _sum(text)}


def check_validation(path: Path) -> None:
    """Raises DataError if a finished stage's file of validation episodes is not the one that it wrote."""
    noted = read_mark(path.parent.parent).get("validations")
    expected = noted.get(path.name) if isinstance(noted, dict) else None
    if expected is not None and expected != file_sum(path):
        raise DataError(
            f"{path} is not the file that the stage wrote, and its episodes are what is counted. Put that back, or "
            f"remove {path.parent.parent} and start the same command again: it trains anew."
        )


def record_identity(directory: Path, identity: Identity, *, kept: bool) -> None:
    """Write what the work in a folder is; with `kept`, only if that is not written there."""
    if kept and read_identity(directory / IDENTITY) is not None:
        return
    directory.mkdir(parents=True, exist_ok=True)
    record = {"digest": identity.digest, "identity": identity.to_json()}
    write_atomic(directory / IDENTITY, [json.dumps(record, indent=1)])


def restore_records(directory: Path) -> None:
    """Mend the records of a finished stage and of its extra rounds."""
    for folder in (directory, *sorted(directory.glob("extra_*"))):
        if steps := steps_in(folder):
            restore_record(folder / f"global_step_{max(steps)}")
    for name, text in _kept_by_mark(directory).items():
        _mend(directory / name, text.encode(), DONE)


def _kept_by_mark(directory: Path) -> dict[str, str]:
    """The records that done.json has a copy of, as long as it is as it was written: name -> text."""
    kept = read_mark(directory).get("kept")
    rows = ((name, kept.get(name)) for name in (RECORD, *_UNCOPIED)) if isinstance(kept, dict) else ()
    found = {name: (row.get("text"), row.get("sha256")) for name, row in rows if isinstance(row, dict)}
    return {name: text for name, (text, known) in found.items() if isinstance(text, str) and _sum(text) == known}


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def restore_record(checkpoint: Path) -> None:
    """Make the `metrics.jsonl` beside a checkpoint what the checkpoint counts on: later lines go, because their steps
    are made again, and lines that were damaged or lost come back from its own copy, which is said."""
    kept = kept_record(checkpoint)
    if kept is not None:
        _mend(checkpoint.parent / RECORD, kept, checkpoint.name)


def _mend(path: Path, kept: bytes, source: str) -> None:
    found = path.read_bytes() if path.is_file() else b""
    if found == kept:
        return
    if path.name != RECORD:
        log.warning("%s was changed or lost; restored from %s", path, source)
    elif not found.startswith(kept):
        there = set(found.splitlines())
        lost = ", ".join(str(json.loads(line)["step"]) for line in kept.splitlines() if line not in there)
        log.warning("%s: lines of steps %s were damaged or lost; restored from %s", path, lost or "?", source)
    write_atomic(path, [kept.decode()])


def archive_work(directory: Path) -> None:
    """Move everything that a stage left in its folder to `previous/<n>/`."""
    old = sorted(path for pattern in _WORK for path in directory.glob(pattern))
    if old:
        log.warning("archived in %s: %s", archive_files(directory, old), ", ".join(path.name for path in old))

"""Manifest of a stage's folder: what the folder contains, and whether the stage is finished, can be
resumed or must not be overwritten.

`manifest.json` is written when a stage begins, and updated until it is finished. It contains the
fingerprint of the work, the sizes of the files that later stages read, and finally the result.
Every start compares fingerprints. The stage is then reused, resumed or run from scratch, or the
start is refused with the names of the changed settings. Settings outside the fingerprint can be
changed at any time, such as the interval between validations, the hardware and the micro-batch
size. With a constant learning rate, this includes the number of PPO steps.
"""

import functools
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spa.errors import ConfigError, DataError
from spa.run.checkpoint import MARKER, checkpoints_in, damage, load_note, step_of
from spa.run.files import (
    LOST,
    MANIFEST,
    METRICS,
    OLDER_COPIES,
    TRACKER_ID,
    archive_files,
    files_below,
    read_object,
    write_atomic,
)
from spa.run.fingerprint import Fingerprint, differences, numerical_differences
from spa.run.recorder import read_metrics

log = logging.getLogger(__name__)

DATA_FILES = "*.parquet"
SUMMARY = "summary.json"
VALIDATIONS = "trajectories/val-*.jsonl"
# `log.txt` is not listed, because every start appends to it, so it is never archived.
_WORK = (
    "global_step_*", METRICS, "timings.jsonl", "trajectories", "token_scores", "tensorboard",
    "config.yaml", "gate.json", "rounds.json", SUMMARY, "imagined", LOST, DATA_FILES, MANIFEST,
    TRACKER_ID,
)  # fmt: skip
"""Files and folders that a stage writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The record of a stage's folder.

    Attributes:
        fingerprint: identifies the work in the folder.
        sizes: relative path of a file in the folder -> its size in bytes.
        result: path of the finished stage's result, relative to the folder; None until it is
            finished.
        seconds: total time over all starts.
        rewound_to: name of the checkpoint in this folder that `resume_path` names; "" if there is
            none.
        commit: commit of the code at the last start, "" if unknown.
    """

    fingerprint: Fingerprint
    sizes: Mapping[str, int] = field(default_factory=dict)
    result: str | None = None
    seconds: float = 0.0
    rewound_to: str = ""
    commit: str = ""

    @classmethod
    def read(cls, folder: Path) -> "Manifest | None":
        """Read the manifest of a folder. If it is missing or damaged, return an unfinished manifest
        with the fingerprint of the newest readable checkpoint. Return None if there is no such
        checkpoint."""
        record = read_object(folder / MANIFEST)
        with suppress(KeyError, TypeError, ValueError):
            return cls(
                fingerprint=Fingerprint.from_json(record["fingerprint"]),
                sizes=dict(record["sizes"]),
                result=record["result"],
                seconds=float(record["seconds"]),
                rewound_to=str(record.get("rewound_to", "")),
                commit=str(record.get("commit", "")),
            )
        for checkpoint in reversed(checkpoints_in(folder)):
            with suppress(OSError, ValueError, TypeError):
                return cls(fingerprint=Fingerprint.from_json(load_note(checkpoint, "fingerprint")))
        return None

    def write(self, folder: Path) -> None:
        """Replace the manifest of a folder."""
        write_atomic(folder / MANIFEST, [json.dumps(asdict(self), indent=1)])

    def problem(self, path: Path, folder: Path) -> str:
        """Describe the defect of a file in `folder`: it is missing, or its size differs from the
        recorded one. Return "" if it is intact."""
        if not path.is_file():
            return f"{path} is missing"
        size = path.stat().st_size
        known = self.sizes.get(path.relative_to(folder).as_posix(), size)
        return (
            "" if size == known else f"{path} has {size} bytes, but the stage wrote {known} bytes"
        )


def batch_file(step: int) -> str:
    """The file name of a self-play batch's episodes, relative to the stage's folder."""
    return f"trajectories/generate-{step:06d}.jsonl"


def whole_batches(folder: Path, first: int = 0) -> int:
    """Return the number of the last self-play batch in the unbroken sequence of recorded, undamaged
    batches that begins at `first` + 1. Return `first` if there is none. Logs a warning for a
    damaged batch."""
    known = Manifest.read(folder)
    step = first
    # The manifest names a batch only after its episodes are on disk, see `Stage.commit`.
    while known is not None and (name := batch_file(step + 1)) in known.sizes:
        if problem := known.problem(folder / name, folder):
            log.warning("%s; the stage plays this batch again", problem)
            break
        step += 1
    return step


def sizes_of(folder: Path, *patterns: str) -> dict[str, int]:
    """Return the size in bytes of each file in a folder that matches one of the patterns, by
    relative path."""
    paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def result_of(folder: Path) -> Path | None:
    """Return the path of a finished stage's result. Return None if the stage has to run: it is not
    finished, or its result is missing or damaged.

    The path is correct even if the run was moved. Raises DataError if a data set differs from what
    the stage wrote.
    """
    known = Manifest.read(folder)
    if known is None or known.result is None:
        return None
    result = folder / known.result
    problem = None if result.exists() else "the result is missing"
    # A checkpoint has a step in its name or a marker with the sizes of its files. Self-play's
    # result is the stage's folder, which has neither.
    if problem is None and (step_of(result) or (result / MARKER).is_file()):
        problem = damage(result)
    for name in [name for name in known.sizes if name.endswith(".parquet")]:
        path = folder / name
        if defect := known.problem(path, folder):
            problem = problem or defect
            # Someone may have edited or replaced the file, and running the stage again would
            # overwrite it.
            if path.is_file():
                raise DataError(
                    f"{defect}. Put the original file back, or remove this file so that the stage writes it again. "
                    "To train on the changed file, run --stages sft,ppo with data.train_files=FILE "
                    "data.val_files=FILE."
                )
    others = [folder / name for name in known.sizes if not name.endswith(".parquet")]
    if defects := [defect for path in others if (defect := known.problem(path, folder))]:
        more = f" (and {len(defects) - 1} more)" if len(defects) > 1 else ""
        log.warning("%s%s; the stage is finished and does not write it again", defects[0], more)
    if problem is not None:
        log.warning("the result %s cannot be used (%s); the stage runs again", result, problem)
        return None
    return result


def damaged_files(run: Path) -> tuple[int, list[str]]:
    """Check all checkpoints and recorded files in and below a folder; return their number and
    the problems. Reads every file and compares the hashes of checkpoints and the sizes of other
    files."""
    files = 0
    problems = list[str]()
    below = files_below(run)
    for marker in [path for path in below if path.name == MARKER]:
        files += 1
        if problem := damage(marker.parent, hashes=True):
            problems.append(f"{marker.parent}: {problem}")
    for path in [path for path in below if path.name == MANIFEST]:
        known = Manifest.read(path.parent)
        if known is None:
            problems.append(f"{path} is unreadable")
            continue
        files += len(known.sizes)
        problems_of = [known.problem(path.parent / name, path.parent) for name in known.sizes]
        problems += filter(None, problems_of)
    return files, problems


def is_finished(folder: Path, fingerprint: Fingerprint) -> bool:
    """Return whether the manifest in a folder records a finished stage with this fingerprint. Does
    not check the stage's files."""
    known = Manifest.read(folder)
    return (
        known is not None
        and known.result is not None
        and not differences(known.fingerprint, fingerprint)
    )


def changes(folder: Path, fingerprint: Fingerprint) -> dict[str, tuple[Any, Any]]:
    """Compare the work in a folder with `fingerprint`. Return the differences as key -> (old, new),
    or {} if there are none or the folder contains no work.

    Differences that change at most the last digits of results are not returned, but logged as a
    warning.
    """
    if not _has_begun(folder):
        return {}
    known = Manifest.read(folder)
    if known is None:
        return {"record of the stage": ("missing or damaged", f"needed ({MANIFEST})")}
    changed = differences(known.fingerprint, fingerprint)
    # If settings differ, the work is refused or archived anyway, so a warning about the last digits
    # would only distract.
    numerics = {} if changed else numerical_differences(known.fingerprint, fingerprint)
    if numerics:
        _warn_once(
            f"{folder} was made with other settings for memory and speed, or on another machine; at most "
            f"the last digits of results differ ({'; '.join(changed_lines(numerics))})"
        )
    return changed


def _has_begun(folder: Path) -> bool:
    """Return whether a folder contains any work. A manifest of an unfinished stage is not work: a
    start that failed while loading a model leaves one."""
    if checkpoints_in(folder) or any(folder.glob(DATA_FILES)) or read_metrics(folder / METRICS):
        return True
    known = Manifest.read(folder)
    return known is not None and known.result is not None


@functools.cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def archive_other_work(stages: Iterable[tuple[Path, Fingerprint]]) -> None:
    """Archive the work of every folder whose settings changed, with a warning. Finished work with
    the same settings is kept."""
    for folder, fingerprint in stages:
        if changed := changes(folder, fingerprint):
            log.warning(
                "%s starts from scratch, because its settings changed: %s",
                folder,
                "; ".join(changed_lines(changed)),
            )
            archive_work(folder)


def refuse_other_work(stages: Sequence[tuple[Path, Fingerprint]]) -> None:
    """Raise one ConfigError that lists every folder with work of another fingerprint. A change that
    a stage inherits from the stage before is listed only once."""
    lines: list[str] = []
    named: dict[str, tuple[Any, Any]] = {}
    for folder, fingerprint in stages:
        changed = changes(folder, fingerprint)
        new = {key: pair for key, pair in changed.items() if named.get(key) != pair}
        if new:
            lines += [f"{folder} contains the work of another configuration:"]
            lines += [f"  {line}" for line in changed_lines(new)]
        named |= changed
    if not lines:
        return
    # The suggested command can contain only settings, not entries such as `the data set`.
    settings = {key: pair for key, pair in named.items() if re.fullmatch(r"[\w.]+", key)}
    tried = [f"{key}={_text(old)},{_text(new)}" for key, (old, new) in settings.items()]
    # If only one setting has changed, the suggested command is complete. A hash cannot be the value
    # of an override.
    only = tried[0] if len(tried) == 1 and "content " not in tried[0] else "KEY=OLD,NEW"
    lines += [
        "No file was changed. Use the old values, or choose one of these:",
        "  another folder:  trainer.run_dir=FOLDER",
        (
            "  from scratch:    trainer.resume_mode=disable for changed stages, --from-scratch for all; "
            "spa archives the existing work"
        ),
        f"  compare both:    spa compare CONFIG --sweep {only}",
    ]
    raise ConfigError("\n".join(lines))


def changed_lines(changed: Mapping[str, tuple[Any, Any]]) -> list[str]:
    """One line `key: old → new` per change."""
    return [f"{key}: {_text(old)} → {_text(new)}" for key, (old, new) in changed.items()]


def _text(value: Any) -> str:
    """Format a value as in an override. A hash is abbreviated."""
    if isinstance(value, str):
        return f"content {value[:12]}" if re.fullmatch("[0-9a-f]{64}", value) else value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def archive_work(folder: Path) -> None:
    """Move all work of a stage in `folder` to `previous/<n>/`. If the folder is a link to another
    run's stage, only remove the link."""
    if folder.is_symlink():
        folder.unlink()
        return
    old = sorted(path for pattern in _WORK for path in folder.glob(pattern))
    if old:
        log.warning(
            "moved earlier work to the archive %s: %s",
            archive_files(folder, old),
            ", ".join(path.name for path in old),
        )
        (folder / OLDER_COPIES).touch()

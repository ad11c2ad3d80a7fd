"""Manifest of a stage's folder: what the folder contains, and whether the stage is finished, can be
resumed or must not be overwritten.

`manifest.json` is written when a stage begins and again when it is finished. It contains the
fingerprint of the work, the sizes of the files that later stages read, and the result once there is
one. Every start compares fingerprints: the stage is finished, resumes, runs from scratch, or is
refused with the names of the changed settings. At any time, a run may be made longer, validated
more or less often, moved to other hardware, or use other micro-batches.
"""

import functools
import json
import logging
import re
from collections.abc import Mapping, Sequence
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
# `log.txt` is not among them, because every start appends to it.
_WORK = (
    "global_step_*", METRICS, "timings.jsonl", "trajectories", "token_scores", "tensorboard",
    "config.yaml", "gate.json", "rounds.json", SUMMARY, "imagined", LOST, DATA_FILES, MANIFEST,
)  # fmt: skip
"""Files and folders that a stage writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The record of a stage's folder.

    fingerprint: identifies the work in the folder. sizes: file in the folder -> bytes. result: path
    of the finished stage's result, relative to the folder; None until it is finished. seconds:
    total time over all starts. rewound_to: the checkpoint in this folder that `resume_path` named;
    later ones are archived. commit: the code's commit at the last start, if known.
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
        with the fingerprint of the newest readable checkpoint, or None if there is no such
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
        """Describe why a file of the folder is not intact, that is, missing or not of its recorded
        size; "" if it is intact."""
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
    """The number of the last batch up to which every batch after `first` is recorded and undamaged;
    `first` if batch `first` + 1 is not. Logs a warning for a damaged batch."""
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
    """The sizes in bytes of the files in a folder that match a pattern, by relative path."""
    paths = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}


def result_of(folder: Path) -> Path | None:
    """Return the result of a finished stage, even if the run was moved. None if the stage is not
    finished, or if its result is missing or damaged, so that it has to run again.

    Raises DataError if a data set differs from what the stage wrote.
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
    """Return whether a folder's record says that the stage with this fingerprint is finished. Does
    not check files."""
    known = Manifest.read(folder)
    return (
        known is not None
        and known.result is not None
        and not differences(known.fingerprint, fingerprint)
    )


def changes(folder: Path, fingerprint: Fingerprint) -> dict[str, tuple[Any, Any]]:
    """Compare the work in a folder with `fingerprint`: key -> (old, new). Empty if they are equal,
    or if there is no work. Logs differences that change at most the last digits."""
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
    """Return whether a folder contains any work. A start that failed because a model cannot be
    loaded leaves none."""
    if checkpoints_in(folder) or any(folder.glob(DATA_FILES)) or read_metrics(folder / METRICS):
        return True
    known = Manifest.read(folder)
    return known is not None and known.result is not None


@functools.cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def refuse_other_work(stages: Sequence[tuple[Path, Fingerprint]]) -> None:
    """Raise a single ConfigError for all stages if a folder contains work of another fingerprint. A
    change that a stage inherits from the one before is named once."""
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
    # Only keys that an override can set, so not `revision of …` or `the data set`.
    settings = {key: pair for key, pair in named.items() if re.fullmatch(r"[\w.]+", key)}
    tried = [f"{key}={_text(old)},{_text(new)}" for key, (old, new) in settings.items()]
    # One changed setting gives a command to copy. A hash cannot be the value of an override.
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
    """A value as written in an override; a hash is abbreviated."""
    if isinstance(value, str):
        return f"content {value[:12]}" if re.fullmatch("[0-9a-f]{64}", value) else value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def archive_work(folder: Path) -> None:
    """Move everything that a stage left in its folder to `previous/<n>/`. If the folder is a link
    to another run's stage, only the link is removed."""
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

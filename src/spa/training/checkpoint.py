"""Checkpoints: plain Hugging Face folders plus one state folder, complete or not there at all.

    global_step_30/
      config.json, model.safetensors, tokenizer.json …   the policy, loadable by transformers and vLLM
      critic/                                            the critic: body and value head
      state/                                             tensors.safetensors, state.json: optimisers, schedule …
                                                         metrics.jsonl: the lines of the stage so far
      complete.json                                      written last: the checksums of all files

A checkpoint is written under a temporary name, flushed to the disk and renamed; one without a valid `complete.json` is
skipped with a message and the one before it is used. A preemption checkpoint, written because a run was asked to stop,
goes when the next one is saved: a run that was stopped ends with the checkpoints of one that was not.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from spa.archive import archive_files, flush_directory
from spa.distributed.world import World
from spa.errors import ModelError, TrainingError
from spa.models.lora import save_model

log = logging.getLogger(__name__)

MARKER = "complete.json"
RECORD = "metrics.jsonl"
"""The lines that training counts on; every checkpoint has its own copy."""
_NAME = re.compile(r"global_step_(\d+)")


def save_checkpoint(
    directory: Path,
    step: int,
    *,
    model: Any,
    tokenizer: Any,
    critic: Any | None = None,
    state: Mapping[str, Any] | None = None,
    keep: int | None = None,
    preemption: bool = False,
) -> Path:
    """Write `directory/global_step_<step>`; then remove older preemption ones and all but the `keep` newest. Returns
    the folder. A `preemption` checkpoint removes nothing else.

    Raises TrainingError if the disk is full or not writable; earlier checkpoints stay.
    """
    final = directory / f"global_step_{step}"
    temporary = directory / f".saving_global_step_{step}"
    try:
        for left_over in directory.glob(".saving_global_step_*"):  # of a save that was killed
            shutil.rmtree(left_over, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_model(model, temporary)
        tokenizer.save_pretrained(temporary)
        if critic is not None:
            critic.save_pretrained(temporary / "critic")
        if state is not None:
            _save_state(temporary / "state", state)
            if (directory / RECORD).is_file():
                shutil.copyfile(directory / RECORD, temporary / "state" / RECORD)
        sums = {str(path.relative_to(temporary)): _sum_and_flush(path) for path in sorted(_files(temporary))}
        marker = temporary / MARKER
        content = {"step": step, "sha256": sums} | ({"passing": True} if preemption else {})
        marker.write_text(json.dumps(content, indent=1), encoding="utf-8")
        _sum_and_flush(marker)
        _flush_directories(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        flush_directory(directory)  # before anything older goes
    except Exception as error:  # safetensors and tokenizers report a full disk as errors of their own
        shutil.rmtree(temporary, ignore_errors=True)
        if not isinstance(error, OSError) and "os error" not in str(error):
            raise
        raise TrainingError(
            f"{final}: the checkpoint could not be written ({error}). Free some disk space or choose another folder, "
            "then run the same command again: it goes on from the last complete checkpoint."
        ) from error
    known = sorted((directory / f"global_step_{number}" for number in steps_in(directory)), key=step_of)
    lasting = [folder for folder in known if not _is_preemption(folder)]
    outdated = lasting[:-keep] if keep is not None and not preemption else []
    for folder in known:
        if folder in outdated or (folder not in lasting and folder != final):
            shutil.rmtree(folder, ignore_errors=True)
    return final


def archive_later_checkpoints(directory: Path, step: int) -> None:
    """Move checkpoints of steps after `step`, which a run that goes on from there will make again, to `previous/<n>/`.

    They would otherwise be taken for this run's newest, and older good ones would be removed in their favour.
    """
    later = [directory / f"global_step_{number}" for number in steps_in(directory) if number > step]
    if not later:
        return
    target = archive_files(directory, later)
    log.warning("set aside in %s: %s", target, ", ".join(folder.name for folder in later))


def latest_checkpoint(directory: Path) -> Path | None:
    """The newest complete checkpoint below `directory`; damaged ones are skipped with a message."""
    for step in sorted(steps_in(directory), reverse=True):
        folder = directory / f"global_step_{step}"
        problem = damage(folder)
        if problem is None:
            return folder
        log.warning("%s is not usable (%s); looking for the one before", folder, problem)
    return None


def last_checkpoint(directory: Path, world: World) -> Path:
    """What a stage ends with: the newest complete checkpoint that rank 0 finds, on every rank. Raises TrainingError if
    there is none any more."""
    found = world.broadcast(lambda: str(latest_checkpoint(directory) or ""))
    if not found:
        raise TrainingError(f"{directory}: the last checkpoint is gone; was the folder changed while training?")
    return Path(found)


def find_checkpoint(directory: Path, which: str) -> Path:
    """`last`, or a step number, as a folder. Folders that hold a model and no mark of ours (downloaded checkpoints, and
    `directory` itself) are taken as they are. Raises ModelError if there is none, or if the asked step is damaged."""
    if which == "last":
        steps = [directory / f"global_step_{step}" for step in sorted(steps_in(directory), reverse=True)]
        found = latest_checkpoint(directory) or next(filter(_is_foreign, steps), None)
        if found is None and (directory / "config.json").is_file():
            found = directory
    else:
        found = directory / f"global_step_{which}"
        found = found if found.is_dir() else None
        if found and not _is_foreign(found) and (problem := damage(found)):
            raise ModelError(f"{found} is damaged: {problem}. Name another step, or run that stage again.")
    if found is None:
        known = ", ".join(str(step) for step in sorted(steps_in(directory))) or "none"
        raise ModelError(
            f"{directory}: no checkpoint {which!r} (steps found: {known}). Run the earlier stages first (GENERATE_DATA "
            "True), or give a checkpoint with model_path=FOLDER."
        )
    return found


def _is_foreign(folder: Path) -> bool:
    """Whether the folder holds a model that `save_checkpoint` did not write."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors")) and not (folder / MARKER).exists()


def step_of(folder: Path) -> int:
    """The step number of a checkpoint folder; 0 if its name has none."""
    match = _NAME.fullmatch(folder.name)
    return int(match.group(1)) if match else 0


def load_state(folder: Path) -> dict[str, Any]:
    """What `save_checkpoint` was given as `state`."""
    tensors = load_file(folder / "state" / "tensors.safetensors")
    tree = json.loads((folder / "state" / "state.json").read_text(encoding="utf-8"))
    return _join(tree, tensors)


def load_note(folder: Path, name: str) -> Any:
    """One entry of the `state` that has no tensors in it, without reading the others; None if there is none. Raises
    OSError or ValueError if the checkpoint has no state, or not the one that it was saved with."""
    tree = json.loads(_as_saved(folder, "state/state.json"))
    return next((_join(part, {}) for key, part in tree["map"] if key == name), None)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        sums = dict(json.loads((folder / MARKER).read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MARKER} is missing or unreadable"
    for name, expected in sums.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if digest(path) != expected:
            return f"{name} has changed since it was written"
    return None


def kept_record(folder: Path) -> bytes | None:
    """The lines of `metrics.jsonl` that a checkpoint was saved with; None if it has none that are whole."""
    try:
        return _as_saved(folder, f"state/{RECORD}")
    except (OSError, ValueError):
        return None


def _as_saved(folder: Path, name: str) -> bytes:
    """A file of a checkpoint. Raises OSError or ValueError if it is gone or not what the checkpoint's mark says."""
    content = (folder / name).read_bytes()
    try:
        expected = json.loads((folder / MARKER).read_text(encoding="utf-8"))["sha256"][name]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / MARKER} has no checksum of {name}") from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise ValueError(f"{folder / name} has changed since it was written")
    return content


def _is_preemption(folder: Path) -> bool:
    """Whether the checkpoint was written only because its run was asked to stop."""
    try:
        return bool(json.loads((folder / MARKER).read_text(encoding="utf-8")).get("passing"))
    except (OSError, ValueError, AttributeError):
        return False


def steps_in(directory: Path) -> list[int]:
    """The steps of the checkpoints in a folder, complete or not."""
    if not directory.is_dir():
        return []
    return [int(match.group(1)) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sum_and_flush(path: Path) -> str:
    _flush_file(path)
    return digest(path)


def flush(folder: Path) -> None:
    """All files and names in a folder, on the disk."""
    for path in _files(folder):
        _flush_file(path)
    _flush_directories(folder)


def _flush_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _flush_directories(folder: Path) -> None:
    for inside in {folder, *(path.parent for path in _files(folder))}:
        flush_directory(inside)


def _save_state(folder: Path, state: Mapping[str, Any]) -> None:
    folder.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    tree = _split(state, "", tensors)
    save_file(tensors, folder / "tensors.safetensors")
    (folder / "state.json").write_text(json.dumps(tree), encoding="utf-8")


def _split(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The value with its tensors moved to `tensors` and replaced by their names. JSON keys are strings, so the kind of
    each key is kept beside it."""
    if isinstance(value, torch.Tensor):
        tensors[path] = value.detach().cpu().contiguous()
        return {"tensor": path}
    if isinstance(value, Mapping):
        return {"map": [[key, _split(item, f"{path}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_split(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]}
    return {"value": value}


def _join(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "map" in tree:
        return {key: _join(item, tensors) for key, item in tree["map"]}
    if "list" in tree:
        return [_join(item, tensors) for item in tree["list"]]
    return tree["value"]

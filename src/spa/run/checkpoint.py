"""Checkpoints: Hugging Face folders with an additional state folder, written atomically.

    global_step_30/
        config.json, model.safetensors, tokenizer.json …   the policy, loadable by transformers and vLLM
        critic/                                            the critic: body and value head
        state/                                             tensors.safetensors, state.json: optimizers, schedule …
        complete.json                                      written last: size and SHA-256 of every file

A checkpoint is written under a temporary name, flushed to disk and renamed. If it is incomplete or
a file has the wrong size, spa logs a warning and uses the checkpoint before it. Hashes are compared
only on demand (`spa doctor RUN`), and when a copy is fetched. A preemption checkpoint is written
when a run is asked to stop, and removed when the next checkpoint is saved. A stopped and resumed
run therefore ends with the same checkpoints as an uninterrupted run.
"""

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

from spa.distributed.world import World
from spa.errors import ModelError, TrainingError
from spa.models.lora import save_model
from spa.run.files import OLDER_COPIES, archive_files, flush_directory, read_object, sha256

log = logging.getLogger(__name__)

MARKER = "complete.json"
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
    """Write the checkpoint `directory/global_step_<step>` and return its path.

    Afterwards, removes older preemption checkpoints, and all regular checkpoints except the `keep`
    newest. Saving a `preemption` checkpoint removes no regular checkpoint. Raises TrainingError if
    the disk is full or not writable; earlier checkpoints then remain.
    """
    final = directory / f"global_step_{step}"
    temporary = directory / f".saving_global_step_{step}"
    try:
        # The folder exists if an earlier process was killed while it saved this step.
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_model(model, temporary)
        tokenizer.save_pretrained(temporary)
        if critic is not None:
            critic.save_pretrained(temporary / "critic")
        if state is not None:
            _save_state(temporary / "state", state)
        # The marker lists every file of the folder, so it comes last.
        _write_marker(temporary, step, preemption=preemption)
        flush(temporary)
        # An earlier checkpoint of this step is removed first, because `rename` only replaces an
        # empty folder.
        shutil.rmtree(final, ignore_errors=True)
        # All files are on the disk by now, so the folder is complete when it gets this name.
        temporary.rename(final)
        # The name must be on the disk, too, before older checkpoints are removed.
        flush_directory(directory)
    except Exception as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # safetensors and tokenizers report a full disk with their own exceptions, whose message
        # contains "os error".
        if not isinstance(error, OSError) and "os error" not in str(error):
            raise
        raise TrainingError(
            f"{final}: the checkpoint could not be written ({error}). Free disk space or choose another "
            "folder, then run the same command again to resume from the last complete checkpoint."
        ) from error
    prune_checkpoints(directory, None if preemption else keep)
    return final


def _write_marker(folder: Path, step: int, *, preemption: bool) -> None:
    files = {str(path.relative_to(folder)): path for path in sorted(_files(folder))}
    content: dict[str, Any] = {
        "step": step,
        "sizes": {name: path.stat().st_size for name, path in files.items()},
        "sha256": {name: sha256(path) for name, path in files.items()},
    }
    if preemption:
        content["preemption"] = True
    (folder / MARKER).write_text(json.dumps(content, indent=1), encoding="utf-8")


def prune_checkpoints(directory: Path, keep: int | None) -> None:
    """Remove all but the `keep` newest regular checkpoints (None keeps all), and all preemption
    checkpoints. The newest checkpoint of any kind always remains."""
    known = checkpoints_in(directory)
    # Preemption checkpoints do not count towards `keep`, so that none displaces a regular
    # checkpoint.
    lasting = [folder for folder in known if not read_object(folder / MARKER).get("preemption")]
    outdated = lasting[:-keep] if keep is not None else []
    # The newest one stays even if it is a preemption checkpoint: a restart resumes from it.
    for folder in known[:-1]:
        if folder in outdated or folder not in lasting:
            shutil.rmtree(folder, ignore_errors=True)


def archive_later_checkpoints(directory: Path, step: int) -> None:
    """Move checkpoints of steps after `step` to `previous/<n>/`, because the run resumes from
    `step` and will write them again.

    If they remained, they would count as the newest checkpoints of this run, and the checkpoints
    that it writes next would be removed instead.
    """
    later = [folder for folder in checkpoints_in(directory) if step_of(folder) > step]
    if later:
        target = archive_files(directory, later)
        (directory / OLDER_COPIES).touch()
        log.warning(
            "moved the checkpoints after step %d to the archive %s: %s",
            step,
            target,
            ", ".join(folder.name for folder in later),
        )


def latest_checkpoint(directory: Path) -> Path | None:
    """Return the newest complete checkpoint in `directory`, or None if there is none. Logs a
    warning for each damaged checkpoint that it skips."""
    for folder in reversed(checkpoints_in(directory)):
        problem = damage(folder)
        if problem is None:
            return folder
        log.warning(
            "the checkpoint %s is not usable (%s); spa tries the previous checkpoint",
            folder,
            problem,
        )
    return None


def last_checkpoint(directory: Path, world: World) -> Path:
    """Return the newest complete checkpoint, which is the result of a finished stage. Rank 0 finds
    it for all ranks. Raises TrainingError if there is none."""
    path = world.broadcast(lambda: str(latest_checkpoint(directory) or ""))
    if not path:
        raise TrainingError(
            f"the last checkpoint in {directory} is missing; another process may have changed the folder. "
            "Run the same command again."
        )
    return Path(path)


def find_checkpoint(directory: Path, which: str) -> Path:
    """Return the checkpoint folder for `which`, either `last` or a step number.

    Models without complete.json, such as downloaded checkpoints, are accepted without validation.
    For `last`, `directory` itself may be such a model. Raises ModelError if there is no checkpoint,
    or if the requested step is damaged.
    """
    if which == "last":
        foreign = filter(_is_foreign, reversed(checkpoints_in(directory)))
        checkpoint = latest_checkpoint(directory) or next(foreign, None)
        if checkpoint is None and (directory / "config.json").is_file():
            checkpoint = directory
    else:
        checkpoint = directory / f"global_step_{which}"
        checkpoint = checkpoint if checkpoint.is_dir() else None
        if checkpoint and not _is_foreign(checkpoint) and (problem := damage(checkpoint)):
            raise ModelError(
                f"the checkpoint {checkpoint} is damaged: {problem}. Name another step, or run the stage again."
            )
    if checkpoint is None:
        known = ", ".join(str(step_of(each)) for each in checkpoints_in(directory)) or "none"
        raise ModelError(
            f"{directory}: no checkpoint {which!r} (steps found: {known}). Run the earlier stages first (GENERATE_DATA "
            "True), or give a checkpoint with model_path=FOLDER."
        )
    return checkpoint


def _is_foreign(folder: Path) -> bool:
    """Return whether the folder contains a model that `save_checkpoint` did not write."""
    return (
        (folder / "config.json").is_file()
        and any(folder.glob("*.safetensors"))
        and not (folder / MARKER).exists()
    )


def step_of(folder: Path) -> int:
    """The step number of a checkpoint folder; 0 if its name has none."""
    match = _NAME.fullmatch(folder.name)
    return int(match.group(1)) if match else 0


def load_state(folder: Path) -> dict[str, Any]:
    """Load the `state` that was passed to `save_checkpoint`."""
    tensors = load_file(folder / "state" / "tensors.safetensors")
    tree = json.loads((folder / "state" / "state.json").read_text(encoding="utf-8"))
    return _join(tree, tensors)


def load_note(folder: Path, name: str) -> Any:
    """Load the entry `name` of the `state`; None if it is missing. The entry must contain no
    tensors, and no tensor file is read. Raises OSError or ValueError if the checkpoint has no
    readable state."""
    tree = json.loads((folder / "state" / "state.json").read_text(encoding="utf-8"))
    try:
        return next((_join(part, {}) for key, part in tree["map"] if key == name), None)
    except (KeyError, TypeError) as error:
        raise ValueError(f"state.json in {folder} contains no training state") from error


def damage(folder: Path, *, hashes: bool = False) -> str | None:
    """Describe the damage of a checkpoint, or return None if it is intact. Compares file sizes,
    which is fast, and with `hashes` also the SHA-256 of every file."""
    marker = read_object(folder / MARKER)
    sums = marker.get("sha256")
    # The marker of copied data files has hashes but no sizes, see `Mirror.copy_files`.
    sizes = marker.get("sizes", {})
    if not isinstance(sums, dict) or not isinstance(sizes, dict):
        return f"{MARKER} is missing or unreadable"
    for name, expected in sums.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        size = path.stat().st_size
        if size != sizes.get(name, size):
            return f"{name} has {size} bytes instead of {sizes[name]}"
        if hashes and sha256(path) != expected:
            return f"{name} has changed since it was written"
    return None


def checkpoints_in(directory: Path) -> list[Path]:
    """The checkpoints in a folder, complete or not, ordered by step."""
    children = directory.iterdir() if directory.is_dir() else ()
    return sorted((path for path in children if _NAME.fullmatch(path.name)), key=step_of)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def flush(folder: Path) -> None:
    """Flush all files and names in a folder to disk."""
    paths = _files(folder)
    for path in paths:
        # Other libraries wrote these files and may not have flushed them. A descriptor opened for
        # reading is enough for fsync.
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for inside in {folder, *(path.parent for path in paths)}:
        flush_directory(inside)


def _save_state(folder: Path, state: Mapping[str, Any]) -> None:
    folder.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    # safetensors stores a flat dict of tensors; the tree around them goes to state.json.
    tree = _split(state, "", tensors)
    save_file(tensors, folder / "tensors.safetensors")
    (folder / "state.json").write_text(json.dumps(tree), encoding="utf-8")


def _split(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Convert a value to a JSON tree in which each tensor is replaced by a name. Add the tensors to
    `tensors` under these names.

    Mappings become lists of pairs, because JSON would turn their keys into strings.
    """
    if isinstance(value, torch.Tensor):
        # safetensors rejects tensors that are not contiguous.
        tensors[path] = value.detach().cpu().contiguous()
        return {"tensor": path}
    if isinstance(value, Mapping):
        return {
            "map": [[key, _split(item, f"{path}/{key}", tensors)] for key, item in value.items()]
        }
    if isinstance(value, list | tuple):
        return {
            "list": [_split(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
        }
    return {"value": value}


def _join(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "map" in tree:
        return {key: _join(item, tensors) for key, item in tree["map"]}
    if "list" in tree:
        return [_join(item, tensors) for item in tree["list"]]
    return tree["value"]

"""Copies of checkpoints and data at an fsspec URL (`s3://…`, `gs://…`, `file://…`), from which a
run can resume on another machine.

A run works in a local folder, because it relies on renames and locks, and then copies every
complete checkpoint. The stage's settings and metrics are copied first, and the marker of the
checkpoint last, so that a copy with a marker is complete. Fetched files are compared with their
hashes.
"""

import json
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from spa.config.schema import Config
from spa.errors import ConfigError, TrainingError
from spa.run import watchdog
from spa.run.checkpoint import MARKER, checkpoints_in, damage, flush, step_of
from spa.run.files import MANIFEST, METRICS, OLDER_COPIES, TRACKER_ID, archive_files, sha256
from spa.run.manifest import VALIDATIONS

log = logging.getLogger(__name__)

RECORDS = ("config.yaml", MANIFEST, METRICS, "timings.jsonl", VALIDATIONS, TRACKER_ID)
"""Files of a stage that are copied with its checkpoints, so that another machine has all its
metrics and validation episodes."""


def copies_of(cfg: Config, directory: Path) -> str | None:
    """Return the URL to which a folder is copied: the configured URL, followed by the path of the
    folder within the run. None if no URL is configured."""
    url = cfg.trainer.default_hdfs_dir
    path = os.path.relpath(directory, cfg.trainer.run_dir)
    return (
        url
        # A folder outside the run (`../…`) is copied under its own name.
        and f"{url.rstrip('/')}/{directory.name if path.startswith('..') else Path(path).as_posix()}"
    )


def mirror_of(cfg: Config, directory: Path) -> "Mirror | None":
    """The `Mirror` of a stage's folder; None if no URL for copies is configured. Raises ConfigError
    if the URL cannot be used."""
    url = copies_of(cfg, directory)
    return Mirror(url) if url else None


class Mirror:
    """The copies of one stage's checkpoints at `url`. Raises ConfigError if fsspec cannot open the
    URL."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self.url = url.rstrip("/")
        try:
            self._fs, root = url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"trainer.default_hdfs_dir={url} cannot be used ({error}); give a URL that fsspec can open"
            ) from error
        self._root = str(root).rstrip("/")

    def copy(self, directory: Path, *, keep: int | None) -> bool:
        """Copy the new complete checkpoints of `directory`, then remove old copies by the rules of
        `save_checkpoint`. Returns whether everything succeeded. An error is only logged as a
        warning, and the next call tries again."""
        try:
            self._copy(directory, keep)
        # fsspec file systems raise their own exceptions, and a failed copy must not stop a run.
        except Exception as error:  # noqa: BLE001
            log.warning(
                "could not copy checkpoints to %s (%s); spa tries again after the next checkpoint",
                self.url,
                error,
            )
            return False
        (directory / OLDER_COPIES).unlink(missing_ok=True)
        return True

    def fetch(self, directory: Path, *, after: int = 0) -> bool:
        """Fetch the newest complete copy of a checkpoint into `directory`, or else the files that
        `copy_files` copied. Return whether anything was fetched.

        Only copies of steps after `after`, the newest step in `directory`, are fetched.

        Raises TrainingError if the URL cannot be read and `directory` has no checkpoint: a run from
        scratch would overwrite the copies.
        """
        try:
            for step in sorted((step for step in self._steps() if step > after), reverse=True):
                # The copy is fetched as `.saving_…`, which `remove_leftovers` deletes if the
                # process is killed meanwhile.
                name = f"global_step_{step}"
                if self._get(
                    f"{self._root}/{name}", directory / f".saving_{name}", directory / name
                ):
                    log.warning(
                        "%s has no checkpoint as new as the copy %s/%s; resuming from the copy",
                        directory,
                        self.url,
                        name,
                    )
                    return True
                log.warning(
                    "the copy %s/%s is incomplete; spa tries the previous copy", self.url, name
                )
            # Self-play has no checkpoints: its data files are in the root, see `copy_files`.
            return not after and self._get(self._root, directory / ".fetching", directory)
        except Exception as error:  # every fsspec file system raises its own exceptions
            if after:
                log.warning(
                    "cannot read %s (%s); resuming from the checkpoint in %s",
                    self.url,
                    error,
                    directory,
                )
                return False
            raise TrainingError(
                f"cannot read {self.url} (trainer.default_hdfs_dir): {error}. {directory} has no checkpoint "
                "to resume from. Run the same command again when the URL is readable, or start from scratch "
                "with trainer.resume_mode=disable."
            ) from error

    def manifest(self) -> dict[str, Any]:
        """The manifest of the copied stage; empty if it is missing or unreadable."""
        try:
            content = json.loads(self._fs.cat_file(f"{self._root}/{MANIFEST}"))
        except Exception:  # noqa: BLE001 - as in `copy`
            return {}
        return content if isinstance(content, dict) else {}

    def copy_files(self, directory: Path, names: Sequence[str]) -> None:
        """Copy the named files of a stage whose result is not a checkpoint (self-play), and then a
        marker with their hashes. Errors are only logged as warnings."""
        try:
            sums = {name: sha256(directory / name) for name in names}
            self._put_records(directory)
            self._put(directory, sums, self._root)
            self._fs.pipe_file(f"{self._root}/{MARKER}", json.dumps({"sha256": sums}).encode())
            (directory / OLDER_COPIES).unlink(missing_ok=True)
        except Exception as error:  # noqa: BLE001 - as in `copy`
            log.warning(
                "%s: the folder %s could not be copied to this URL (%s); check trainer.default_hdfs_dir",
                self.url,
                directory,
                error,
            )

    def _copy(self, directory: Path, keep: int | None) -> None:
        # The records come first, because resuming from a copied checkpoint needs the metrics of the
        # steps before it.
        self._put_records(directory)
        folders = checkpoints_in(directory)
        # Newest first: another machine resumes from the newest checkpoint.
        for folder in reversed(folders):
            target = f"{self._root}/{folder.name}"
            # A marker has the hashes of all files, so equal markers mean equal copies.
            if (folder / MARKER).is_file() and (folder / MARKER).read_bytes() != self._marker(
                target
            )[0]:
                # Remove the old copy first, so that files of two checkpoints are never mixed.
                self._remove(target)
                names = json.loads((folder / MARKER).read_text(encoding="utf-8"))["sha256"]
                # The marker is copied last: a copy without a marker is ignored.
                self._put(folder, [*names, MARKER], target)
        newest = step_of(folders[-1])
        known = {
            step: self._marker(f"{self._root}/global_step_{step}")[1] for step in self._steps()
        }
        lasting = sorted(
            step for step, marker in known.items() if marker and not marker.get("preemption")
        )
        # Copies of steps after the newest local one belong to an earlier run, so they do not count
        # towards `keep`.
        lasting = [step for step in lasting if step <= newest]
        # Remove all other copies: old, preemption and incomplete checkpoints, and checkpoints of an
        # earlier run.
        for step in set(known) - {newest} - set(lasting if keep is None else lasting[-keep:]):
            self._remove(f"{self._root}/global_step_{step}")

    def _put_records(self, directory: Path) -> None:
        names = [
            path.relative_to(directory).as_posix()
            for pattern in RECORDS
            for path in sorted(directory.glob(pattern))
        ]
        # Episode files do not change after they are written, so a copy of the same size is up to
        # date. They are the only records in a subfolder. Other records grow and are always copied.
        new = [
            name
            for name in names
            if "/" not in name
            or not self._fs.exists(f"{self._root}/{name}")
            or self._fs.size(f"{self._root}/{name}") != (directory / name).stat().st_size
        ]
        self._put(directory, new, self._root)

    def _put(self, folder: Path, names: Iterable[str], target: str) -> None:
        """Copy files in the given order."""
        for name in names:
            self._fs.makedirs(f"{target}/{name}".rpartition("/")[0], exist_ok=True)
            self._fs.put_file(str(folder / name), f"{target}/{name}")
            watchdog.beat()

    def _get(self, source: str, temporary: Path, final: Path) -> bool:
        """Fetch the files that the marker of `source` lists into `temporary`, and move them to
        `final` if they are intact; return whether they are."""
        content, marker = self._marker(source)
        if not marker:
            return False
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name in marker["sha256"]:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            # `damage` below reports missing files.
            if self._fs.exists(f"{source}/{name}"):
                self._fs.get_file(f"{source}/{name}", str(temporary / name))
        # The marker is written byte for byte, because `_copy` compares markers as bytes.
        (temporary / MARKER).write_bytes(content)
        problem = damage(temporary, hashes=True)
        if problem is None:
            self._arrived(temporary, final)
            return True
        log.warning("the copy %s is not usable (%s) and is ignored", source, problem)
        shutil.rmtree(temporary)
        return False

    def _arrived(self, temporary: Path, final: Path) -> None:
        """Fetch the stage's records, and move the fetched files from `temporary` to `final`."""
        directory = temporary.parent
        # The records in the folder are older than the copy, so they are overwritten.
        for pattern in RECORDS:
            for path in map(str, self._fs.glob(f"{self._root}/{pattern}")):
                name = path.rpartition(f"{self._root}/")[2]
                (directory / name).parent.mkdir(exist_ok=True)
                self._fs.get_file(path, str(directory / name))
        flush(temporary)
        # Data files are moved into the folder one by one. The stage's manifest records their sizes,
        # so the marker is not kept.
        if final == directory:
            (temporary / MARKER).unlink()
            for path in [path for path in temporary.rglob("*") if path.is_file()]:
                place = final / path.relative_to(temporary)
                place.parent.mkdir(exist_ok=True)
                path.replace(place)
            shutil.rmtree(temporary)
            return
        # A local checkpoint of this name is damaged, because an intact one would have been used
        # instead of the copy.
        if final.exists():
            archive_files(directory, [final])
        temporary.rename(final)

    def _remove(self, folder: str) -> None:
        """Remove a copy, its marker first, so that a half-removed copy does not count as
        complete."""
        if self._fs.exists(f"{folder}/{MARKER}"):
            self._fs.rm_file(f"{folder}/{MARKER}")
        if self._fs.exists(folder):
            self._fs.rm(folder, recursive=True)

    def _marker(self, folder: str) -> tuple[bytes, dict[str, Any]]:
        """A copy's marker as bytes and parsed; both empty if the copy is incomplete."""
        if not self._fs.exists(f"{folder}/{MARKER}"):
            return b"", {}
        content = bytes(self._fs.cat_file(f"{folder}/{MARKER}"))
        try:
            marker = json.loads(content)
            # The names come from a remote file, so names that lead out of the folder are rejected.
            inside = all(
                not Path(name).is_absolute() and ".." not in Path(name).parts
                for name in marker["sha256"]
            )
        except (ValueError, KeyError, TypeError):
            return b"", {}
        return (content, marker) if inside else (b"", {})

    def _steps(self) -> list[int]:
        # fsspec caches listings, and another machine may have written in the meantime.
        self._fs.invalidate_cache()
        if not self._fs.exists(self._root):
            return []
        names = (
            str(path).rstrip("/").rpartition("/")[2]
            for path in self._fs.ls(self._root, detail=False)
        )
        return [step_of(Path(name)) for name in names if name.startswith("global_step_")]

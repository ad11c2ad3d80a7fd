"""Simulated power loss: what a checkpoint counts on is on the disk before the checkpoint is.

Flushes and renames of a small stage are recorded. After each of them the power may go. What is left has the content that
was flushed, and either only the names that were flushed, or all names: a file system may write those at any time.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.families import small_model, tokenizer

from spa.run.checkpoint import damage, latest_checkpoint, save_checkpoint, step_of
from spa.run.recorder import Recorder, read_metrics

STEPS = 3


class Disk:
    """What of `root` would be left without power, checked after every flush and rename."""

    def __init__(
        self, root: Path, patch: pytest.MonkeyPatch, check: Callable[[Callable[[Path], None]], None]
    ) -> None:
        self.root, self.check, self.moments = root, check, 0
        self.content: dict[int, bytes] = {}  # inode -> flushed bytes
        # inode of a directory -> flushed names and their inodes
        self.names: dict[int, dict[str, int]] = {}
        self._flush = os.fsync
        patch.setattr(os, "fsync", self.fsync)
        for name in ("rename", "replace"):
            patch.setattr(os, name, self._then_checked(getattr(os, name)))

    def fsync(self, descriptor: int) -> None:
        self._flush(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            self.names[path.stat().st_ino] = {
                child.name: child.stat().st_ino for child in path.iterdir()
            }
        else:
            self.content[path.stat().st_ino] = path.read_bytes()
        self._power_goes()

    def _then_checked(self, change: Callable[..., None]) -> Callable[..., None]:
        def changed(*args: object, **settings: object) -> None:
            change(*args, **settings)
            self._power_goes()

        return changed

    def _power_goes(self) -> None:
        self.moments += 1
        self.check(lambda place: self._flushed_names(self.root.stat().st_ino, place))
        self.check(lambda place: self._all_names(self.root, place))

    def _flushed_names(self, inode: int, place: Path) -> None:
        place.mkdir()
        for name, own in self.names.get(inode, {}).items():
            if own in self.names:
                self._flushed_names(own, place / name)
            else:
                (place / name).write_bytes(self.content.get(own, b""))

    def _all_names(self, real: Path, place: Path) -> None:
        place.mkdir()
        for path in real.iterdir():
            if path.is_dir():
                self._all_names(path, place / path.name)
            else:
                (place / path.name).write_bytes(self.content.get(path.stat().st_ino, b""))


def test_a_checkpoint_never_gets_to_the_disk_before_the_lines_that_it_counts_on(
    tmp_path, monkeypatch
):
    model, words, done = small_model("qwen2"), tokenizer("qwen2"), [0]
    stage, left = tmp_path / "ppo", tmp_path / "left"
    stage.mkdir()

    def check(build: Callable[[Path], None]) -> None:
        shutil.rmtree(left, ignore_errors=True)
        build(left)
        found = latest_checkpoint(left)
        step = step_of(found) if found else 0
        assert step >= done[0], f"a checkpoint that was reported is lost: {step} of {done[0]}"
        steps = [line["step"] for line in read_metrics(left / "metrics.jsonl")]
        assert steps[:step] == list(range(1, step + 1))
        assert found is None or damage(found, hashes=True) is None

    with Recorder(stage, stage="ppo") as rec, monkeypatch.context() as patch:
        disk = Disk(stage, patch, check)
        for step in range(1, STEPS + 1):
            rec.log(step, {"train/success": step / 7})
            save_checkpoint(stage, step, model=model, tokenizer=words, state={"step": step}, keep=1)
            done[0] = step
    assert disk.moments > 10 * STEPS

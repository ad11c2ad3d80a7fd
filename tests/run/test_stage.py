"""A stage that is killed at any moment, or asked to stop, ends as one to which nothing happened."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.runs import small_config
from test_recorder import episode

from spa.config.schema import Config
from spa.errors import ConfigError
from spa.run.checkpoint import load_state
from spa.run.fingerprint import Fingerprint
from spa.run.manifest import MANIFEST, Manifest, batch_file, damaged_files
from spa.run.signals import StopRequested
from spa.run.stage import Snapshot, Stage

TOTAL = 4
TIMES = ("log.txt", "timings.jsonl", ".lock")


@dataclass
class Weights:
    """The smallest thing that is trained: one number, which saves itself like a model."""

    value: torch.Tensor

    def snapshot(self) -> Snapshot:
        return Snapshot(model=self, tokenizer=self, state={"value": self.value})

    def save_pretrained(self, folder: Path, **settings: object) -> None:
        (folder / "config.json").write_text(json.dumps(self.value.tolist()))


def fingerprint(stage: Any, **settings: object) -> Fingerprint:
    return Fingerprint(stage=stage, settings=settings, content={})


def train(
    cfg: Config,
    folder: Path,
    total: int = TOTAL,
    moment: Callable[[str, int], None] | None = None,
    **settings: object,
) -> Path:
    """Four steps, a checkpoint after two of them, one kept. `moment` is told where the work is."""
    tell = moment or (lambda where, step: None)
    with Stage(cfg, folder, fingerprint("ppo", **settings), total=total, keep=1) as stage:
        if stage.result is not None:
            return stage.result
        weights = Weights(
            load_state(stage.resume_from)["value"] if stage.resume_from else torch.zeros(2)
        )
        for step in stage.steps(total, save_every=2):
            with stage.interruptible("rollout"):
                tell("rollout", step)
                played = [episode(f"train/{step}/0/0")]
            with stage.timer("update"):
                tell("update", step)
                weights.value = weights.value * 2 + step
            tell("commit", step)
            stage.commit(step, {"train/value": float(weights.value[0])}, played, weights)
        return stage.finish()


def test_the_time_of_all_starts_is_known(tmp_path):
    cfg = small_config("none", tmp_path)

    def interrupted(where: str, step: int) -> None:
        if (where, step) == ("rollout", 3):
            time.sleep(1.1)
            raise StopRequested("SIGTERM")

    with pytest.raises(StopRequested):
        train(cfg, tmp_path / "ppo", moment=interrupted)
    train(cfg, tmp_path / "ppo")
    known = Manifest.read(tmp_path / "ppo")
    assert known is not None and known.seconds >= 1.1


def play(cfg: Config, folder: Path) -> Path:
    """Four batches and a data set of them."""
    with Stage(cfg, folder, fingerprint("selfplay")) as stage:
        if stage.result is not None:
            return stage.result
        for batch in stage.steps(TOTAL):
            with stage.interruptible("selfplay"):
                played = [episode(f"selfplay/{batch}/0/{member}") for member in range(2)]
            stage.commit(batch, {"selfplay/batch": float(batch)}, played)
        texts = [(folder / batch_file(batch)).read_text() for batch in range(1, TOTAL + 1)]
        (folder / "wm_train.parquet").write_text("".join(texts))
        return stage.finish()


def content(folder: Path) -> dict[str, object]:
    """All files but those with times in them."""
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in TIMES:
            known = path.read_bytes()
            name = str(path.relative_to(folder))
            found[name] = json.loads(known) | {"seconds": 0} if path.name == MANIFEST else known
    return found


class Killer:
    """Counts flushes and renames, and kills the process before or after one of them."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0
        for name in ("fsync", "rename", "replace"):
            setattr(os, name, self.counted(getattr(os, name)))

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: object, **settings: object) -> Any:
            self.count += 1
            if self.count == self.at and self.at % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            value = call(*args, **settings)
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            return value

        return counting


def killed(work: Callable[[], Path], at: int) -> bool:
    """Do the work in a process of its own that is killed at its `at`-th flush or rename; whether it was."""
    pid = os.fork()
    if pid == 0:
        try:
            Killer(at)
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("work", [train, play])
def test_killed_at_any_moment_it_ends_as_if_nothing_had_happened(tmp_path, work):
    whole = tmp_path / "whole"
    work(small_config("none", tmp_path), whole)
    expected = content(whole)
    moment, hit = 1, 0
    while True:
        folder = tmp_path / f"killed-{moment}"
        cfg = small_config("none", tmp_path)
        if not killed(lambda cfg=cfg, folder=folder: work(cfg, folder), moment):
            break
        killed(lambda cfg=cfg, folder=folder: work(cfg, folder), 7)  # and again, soon after
        work(cfg, folder)
        found = content(folder)
        set_aside = {name for name in found if name.startswith("previous/")}
        assert {
            name: value for name, value in found.items() if name not in set_aside
        } == expected, moment
        moment, hit = moment + 3, hit + 1
    assert hit > 10


def ask_at(where: str, step: int) -> Callable[[str, int], None]:
    return lambda place, at: (
        os.kill(os.getpid(), signal.SIGTERM) if (place, at) == (where, step) else None
    )


@pytest.mark.parametrize(
    ("where", "step", "saved"),
    [
        ("rollout", 1, ""),
        ("rollout", 2, "global_step_1"),
        ("update", 3, "global_step_3"),
        ("commit", 2, ""),
    ],
)
def test_asked_to_stop_it_saves_what_is_committed(tmp_path, where, step, saved):
    cfg, folder = small_config("none", tmp_path), tmp_path / "stage"
    train(cfg, tmp_path / "whole")
    with pytest.raises(StopRequested) as stop:
        train(cfg, folder, moment=ask_at(where, step))
    assert stop.value.saved == (str(folder / saved) if saved else "")
    train(cfg, folder)
    assert content(folder) == content(tmp_path / "whole")


def test_a_finished_stage_writes_nothing_and_becomes_longer_on_request(tmp_path):
    cfg, folder = small_config("none", tmp_path), tmp_path / "stage"
    assert train(cfg, folder, total=2) == folder / "global_step_2"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert train(cfg, folder, total=2) == folder / "global_step_2"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert train(cfg, folder) == folder / "global_step_4"
    train(cfg, tmp_path / "whole")
    assert content(folder) == content(tmp_path / "whole")


def test_a_finished_stage_says_that_it_has_more_steps_than_asked_for(tmp_path, caplog):
    cfg, folder = small_config("none", tmp_path), tmp_path / "stage"
    train(cfg, folder)
    assert not caplog.records
    assert train(cfg, folder, total=2) == folder / "global_step_4"
    assert "has 4 steps, more than the 2 of this command" in caplog.text


@pytest.mark.parametrize("work", [train, play])
def test_a_torn_record_of_metrics_of_a_finished_stage_is_named(work, tmp_path, caplog):
    cfg, folder = small_config("none", tmp_path), tmp_path / "stage"
    work(cfg, folder)
    assert not damaged_files(folder)[1]
    record = folder / "metrics.jsonl"
    record.write_text(record.read_text()[:-9])
    work(cfg, folder)
    assert f"{record} has " in caplog.text and "does not write it again" in caplog.text
    assert any(f"{record} has " in problem for problem in damaged_files(folder)[1])


def test_a_record_of_metrics_may_grow_while_a_finished_stage_becomes_longer(tmp_path):
    cfg, folder = small_config("none", tmp_path), tmp_path / "stage"
    train(cfg, folder, total=2)
    with pytest.raises(RuntimeError, match="out of luck"):
        train(cfg, folder, TOTAL, lambda where, step: out_of_luck() if step == TOTAL else None)
    assert not damaged_files(folder)[1]


def out_of_luck() -> None:
    raise RuntimeError("out of luck")


def test_a_machine_that_comes_back_goes_on_from_the_copies_of_the_other(tmp_path):
    def on(machine: str, die: int, **settings: object) -> list[str]:
        """Train up to step `die`; the names of the copies then."""

        def moment(where: str, step: int) -> None:
            if (where, step) == ("update", die):
                raise RuntimeError("the machine is gone")

        url = f"trainer.default_hdfs_dir=file://{tmp_path}/copies"
        cfg = small_config("none", tmp_path / machine, url)
        with pytest.raises(RuntimeError, match="the machine is gone"):
            train(cfg, tmp_path / machine / "ppo", 10, moment, **settings)
        return sorted(path.name for path in (tmp_path / "copies/ppo").glob("global_step_*"))

    assert on("a", die=1) == []  # before a checkpoint: the next start puts this record aside
    assert on("a", die=3) == ["global_step_2"]
    assert on("b", die=7) == ["global_step_6"]
    assert on("a", die=9) == ["global_step_8"]
    lines = (tmp_path / "a/ppo/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, 9))
    # Another run with the same URL keeps its own work.
    shutil.rmtree(tmp_path / "copies")
    assert on("c", die=3, rate=2) == ["global_step_2"]
    shutil.rmtree(tmp_path / "copies")
    assert on("d", die=7) == ["global_step_6"]
    assert on("c", die=5, rate=2) == ["global_step_4"]


def test_other_work_is_refused_before_anything_is_written_and_archived_on_request(tmp_path):
    cfg, folder = small_config("none", tmp_path), tmp_path / "stage"
    train(cfg, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    other = fingerprint("ppo", **{"algorithm.gamma": 0.5})
    with (
        pytest.raises(ConfigError, match=r"algorithm\.gamma: 1\.0 → 0\.5"),
        Stage(cfg, folder, other),
    ):
        pass
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    scratch = replace(cfg, trainer=replace(cfg.trainer, resume_mode="disable"))
    with Stage(scratch, folder, other, again=True) as stage:
        assert (stage.result, stage.resume_from, stage.step) == (None, None, 0)
    assert (folder / "previous/1/global_step_4").is_dir() and (
        folder / "previous/1/metrics.jsonl"
    ).is_file()
    known = Manifest.read(folder)
    assert known is not None and known.fingerprint == other and known.result is None


def test_a_damaged_newest_checkpoint_costs_its_own_steps(tmp_path):
    cfg, folder = small_config("none", tmp_path), tmp_path / "stage"
    keep_both = {"total": TOTAL, "keep": None}
    with Stage(cfg, folder, fingerprint("ppo"), **keep_both) as stage:
        for step in stage.steps(TOTAL, save_every=2):
            stage.commit(step, {"a": 1.0}, trained=Weights(torch.zeros(1)))
    weights = folder / "global_step_4" / "state" / "tensors.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with Stage(cfg, folder, fingerprint("ppo"), **keep_both) as stage:
        assert (stage.resume_from, stage.step) == (folder / "global_step_2", 2)
    assert (folder / "previous/1/global_step_4").is_dir()

"""SIGTERM, for real, while several processes work: they save and end, and the same command goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.runs import SMALL

from spa.recipes import selfplay
from spa.run.checkpoint import latest_checkpoint, step_of
from spa.run.lock import run_lock

LIMIT_S = 300.0  # of a busy machine; a run that is asked to stop has 30 s on a quiet one


class Launch:
    """A process with its output in a file; gone, with all its children, at the end of the test."""

    def __init__(self, command: list[str], log: Path) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(Path(selfplay.__file__).parents[2]),
            "PYTHONFAULTHANDLER": "1",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                env=environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, *about: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def wait_until(self, there: Callable[[], bool]) -> None:
        end = time.monotonic() + LIMIT_S
        while not there():
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()[
                -4000:
            ]
            time.sleep(0.05)

    def end(self) -> int:
        return self.process.wait(LIMIT_S)


def steps(stage: Path) -> list[int]:
    path = stage / "metrics.jsonl"
    return (
        [json.loads(line)["step"] for line in path.read_text().splitlines()]
        if path.is_file()
        else []
    )


def saved_step(stage: Path, known: list[int]) -> int:
    """The step that was saved last. Every step is there once, but that the last one's line may still be to be written,
    by who goes on."""
    saved = latest_checkpoint(stage)
    assert saved is not None and known == list(range(1, len(known) + 1))
    assert step_of(saved) - len(known) in (0, 1)
    return step_of(saved)


def goes_on(stage: Path, before: list[int]) -> Callable[[], bool]:
    """Whether the stage has written a step after those."""
    return lambda: len(steps(stage)) > len(before)


@pytest.fixture
def words(base: Path, tmp_path: Path) -> list[str]:
    """More steps than anybody waits for, without regular checkpoints."""
    return [
        "base",
        *SMALL,
        f"model_path={base}",
        f"trainer.run_dir={tmp_path / 'run'}",
        "generate.policy=random",
        "generate.num_batches=1",
        "sft.optim.name=adamw",
        "sft.trainer.total_training_steps=5000",
        "sft.trainer.save_freq=5000",
        "sft.trainer.test_freq=5000",
        "sft.trainer.eval_episodes=0",
        "trainer.total_training_steps=5000",
        "trainer.val_before_train=false",
    ]


def test_ranks_stop_together_and_save(words, tmp_path):
    stage = tmp_path / "run" / "sft"
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "spa",
        "run",
        *words,
    ]
    with Launch(command, tmp_path / "first.txt") as first:
        first.wait_until(goes_on(stage, []))
        # one rank: all hear of it
        os.kill(json.loads((stage / ".lock").read_text())["pid"], signal.SIGTERM)
        # torchrun's, for ranks that have not finished
        assert first.end() == 1, first.log.read_text()[-4000:]
    saved = saved_step(stage, steps(stage))
    assert (
        first.log.read_text().count(f"stopped by SIGTERM. Saved: {stage / f'global_step_{saved}'}")
        == 2
    )
    with Launch(command, tmp_path / "second.txt") as second:
        second.wait_until(goes_on(stage, steps(stage)))
        second.process.terminate()  # torchrun asks its ranks, and says itself that it was stopped
        second.end()
    again = saved_step(stage, steps(stage))
    assert again > saved
    assert (
        second.log.read_text().count(f"stopped by SIGTERM. Saved: {stage / f'global_step_{again}'}")
        == 2
    )


def test_the_processes_of_a_comparison_save(words, tmp_path):
    stages = [tmp_path / "run" / "vanilla" / "ppo", tmp_path / "run" / "spa" / "sft"]
    command = ["-m", "spa", "compare", *words, "compare.arms=[vanilla,spa]", "compare.parallel=2"]
    with Launch(command, tmp_path / "out.txt") as launch:
        for stage in stages:
            launch.wait_until(goes_on(stage, []))
        launch.process.terminate()
        assert launch.end() == 143, launch.log.read_text()[-4000:]
    for stage in stages:
        with run_lock(stage):  # its process is gone
            saved_step(stage, steps(stage))

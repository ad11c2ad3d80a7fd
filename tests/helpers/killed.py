"""Real comparisons with the built-in model at tiny size, killed in the middle."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from spa.run.files import MANIFEST, read_object
from spa.run.lock import LOCK, held

SMALLEST = (
    "generate.num_batches=1",
    "sft.trainer.eval_episodes=4",
    "es_manager.train.env_groups=2",
    "es_manager.train.group_size=2",
    "es_manager.val.env_groups=4",
    "es_manager.val.group_size=2",
    "agent_proxy.max_turn=2",
    "actor_rollout_ref.actor.ppo_num_mini_batches=1",
    "trainer.device=cpu",
    "gate.enable=false",
    "compare.parallel=2",
)
"""What makes the preset `tiny` a matter of seconds."""


def steps_of(stage: Path) -> int:
    """How many lines of metrics a stage has written."""
    path = stage / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def is_finished(stage: Path) -> bool:
    """Whether a stage is recorded as finished."""
    return read_object(stage / MANIFEST).get("result") is not None


def kill_comparison(run: Path, *overrides: str, when: Callable[[], bool]) -> Path:
    """Start `spa compare tiny` in `run` and kill it with its processes as soon as `when()` holds."""
    words = [
        sys.executable,
        "-m",
        "spa",
        "compare",
        "tiny",
        f"trainer.run_dir={run}",
        *SMALLEST,
        *overrides,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (run.parent / "output.txt").open("w") as output:
        process = subprocess.Popen(
            words, env=environment, start_new_session=True, stdout=output, stderr=output
        )
    give_up = time.monotonic() + 300
    try:
        while not when():
            assert process.poll() is None and time.monotonic() < give_up, (
                run.parent / "output.txt"
            ).read_text()
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    while any(held(path.parent) for path in run.rglob(LOCK)):  # its workers are still ending
        time.sleep(0.05)
    return run

"""`launcher=ray` for real, on CPU workers: a killed worker is replaced, and the run ends as if nothing had happened.

Not collected by `make test`, because Ray is a large install: `make test-extra NAME=ray` makes an environment and runs it.
"""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: make test-extra NAME=ray")

import psutil
from helpers.runs import make_base, small_config

from spa.config.schema import Config
from spa.errors import ConfigError
from spa.launch.job import Job
from spa.launch.start import launch

STEPS = 4
OVERRIDES = (
    "launcher=ray",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=2",
    "trainer.device=cpu",
    "trainer.val_before_train=false",
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=1",
    "trainer.rank_timeout_s=120",
    "actor_rollout_ref.actor.strategy=ddp",
    "micro_batch_size_per_gpu=2",
    "ray_init.num_cpus=2",
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("models") / "base")


def config(base: Path, folder: Path, *overrides: str) -> Config:
    return small_config(base, folder, *OVERRIDES, *overrides)


def kill_a_worker(after: Path) -> None:
    """SIGKILL to one of the two ranks as soon as `after` exists."""
    while not after.exists():
        time.sleep(0.1)
    workers = [
        p
        for p in psutil.Process().children(recursive=True)
        if "TrainWorker" in " ".join(p.cmdline())
    ]
    assert len(workers) >= 2, "no Ray Train workers found"
    os.kill(workers[-1].pid, signal.SIGKILL)


def test_a_killed_worker_is_replaced_and_the_run_ends_as_an_undisturbed_one(base, tmp_path):
    whole = config(base, tmp_path / "whole")
    assert launch(whole, Job(stage="ppo")) == tmp_path / "whole" / "ppo" / f"global_step_{STEPS}"
    folder = tmp_path / "killed"
    killer = threading.Thread(
        target=kill_a_worker, args=[folder / "ppo" / "global_step_2"], daemon=True
    )
    killer.start()
    last = launch(config(base, folder), Job(stage="ppo"))
    killer.join(timeout=5)
    assert not killer.is_alive()
    assert last == folder / "ppo" / f"global_step_{STEPS}"
    expected = (tmp_path / "whole" / "ppo" / "metrics.jsonl").read_bytes()
    assert (folder / "ppo" / "metrics.jsonl").read_bytes() == expected
    marks = [
        json.loads((root / f"global_step_{STEPS}" / "complete.json").read_text())["sha256"]
        for root in (tmp_path / "whole" / "ppo", folder / "ppo")
    ]
    assert marks[0] == marks[1]


def test_a_cluster_that_is_too_small_is_named(base, tmp_path):
    with pytest.raises(
        ConfigError, match=r"need \{'CPU': 6\}, but the Ray cluster has \{'CPU': 2\}"
    ):
        launch(config(base, tmp_path, "trainer.nnodes=3"), Job(stage="ppo"))

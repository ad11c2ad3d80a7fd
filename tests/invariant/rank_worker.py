"""What the rank tests run on every rank: stages of the recipe, with PPO on fixed episodes.

    python rank_worker.py RANKS JOBS.json

The ranks are forked from this process, which has imported the libraries and done nothing with them. JOBS.json is a list of [stage, base model, run folder, overrides]; the stage `spoiled` is SFT whose first loss is not
finite on the second rank, though its gradient is.
"""

import json
import math
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from helpers.runs import small_config

from spa.distributed.world import current_world, joined
from spa.engines.factory import EngineKind
from spa.models import forward
from spa.policies.scripted import random_engine
from spa.recipes import pipeline, ppo_run, sft_updates

OVERRIDES = (
    "es_manager.train.env_groups=5",
    "es_manager.train.group_size=3",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    "actor_rollout_ref.rollout.name=rank_worker:fixed_episodes",
    "actor_rollout_ref.actor.optim.lr=1e-4",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.kl_loss_coef=0.1",
    "micro_batch_size_per_gpu=3",
    "trainer.val_before_train=false",
    "trainer.save_freq=1",
    "trainer.kl_stop=1e9",
    "trainer.kl_warn=1e9",
    "sft.optim.name=adamw",
    "sft.optim.lr=1e-4",
    "sft.data.train_batch_size=7",
    "sft.data.micro_batch_size_per_gpu=2",
    "sft.trainer.total_training_steps=2",
    "sft.trainer.test_freq=1",
    "sft.trainer.save_freq=1",
)
"""Nothing divides evenly: 5 groups, 15 episodes in 2 mini-batches, 7 sequences in micro-batches of 2."""


fixed_episodes = EngineKind(
    make=lambda request: random_engine(request.template, max_actions=3), trainable=True
)
"""An engine that plays the same whatever the weights are."""


@contextmanager
def spoiled_once() -> Iterator[None]:
    """The first loss of SFT on the second rank is not a number."""
    real, first = sft_updates.token_logprobs, iter([math.nan] if current_world().rank == 1 else [])

    def logprobs(*args: Any, **settings: Any) -> Any:
        found, entropy = real(*args, **settings)
        return found + next(first, 0.0), entropy

    sft_updates.token_logprobs = logprobs
    try:
        yield
    finally:
        sft_updates.token_logprobs = real


@contextmanager
def shared_prefixes() -> Iterator[None]:
    """Batches as small as these share their prefix, too."""
    real, forward.WORTH_SHARING = forward.WORTH_SHARING, 4
    try:
        yield
    finally:
        forward.WORTH_SHARING = real


def run(jobs: list[list[Any]]) -> None:
    """Run stages one after the other, on the ranks that this process has joined."""
    with shared_prefixes():
        for stage, base, folder, overrides in jobs:
            cfg = small_config(base, Path(folder), *OVERRIDES, *overrides)
            if stage in ("sft", "spoiled"):
                with spoiled_once() if stage == "spoiled" else nullcontext():
                    data = Path(base).parent / "data"
                    pipeline.run_sft_stage(cfg, directory=Path(folder) / "sft", data=data)
            else:
                ppo_run.run_ppo(cfg)


def work(jobs: Path) -> None:
    """What one rank does."""
    with joined("cpu", 120.0):
        run(json.loads(jobs.read_text(encoding="utf-8")))
    names = [
        path.read_text(encoding="utf-8").strip() for path in Path("/proc/self/task").glob("*/comm")
    ]
    assert not [name for name in names if "gloo" in name], (
        f"threads that would outlive the interpreter: {names}"
    )


def forked_ranks(count: int, jobs: Path) -> int:
    """Fork the ranks with the variables that torchrun sets; returns 1 if one of them failed, which ends the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running: set[int] = set()
    for rank in range(count):
        if pid := os.fork():
            running.add(pid)
            continue
        os.environ |= {
            "TORCHELASTIC_RUN_ID": "ranks",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
        }
        work(jobs)
        return 0
    while running:
        pid, status = os.wait()
        running.remove(pid)
        if status:
            for other in running:
                os.kill(other, signal.SIGKILL)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(forked_ranks(int(sys.argv[1]), Path(sys.argv[2])))

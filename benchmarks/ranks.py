"""Does a PPO step split among ranks? Processor seconds per rank and phase on 1, 2 and 4 gloo ranks of this machine.

    python benchmarks/ranks.py [--ranks 1 2 4] [--strategy ddp fsdp]

Prints JSON. Seconds are of processor time, the largest of the ranks, per step, so that ranks may share cores with each
other and with other work: what a rank would take on a core of its own, without the time that messages travel. Each
phase is modelled as `alone + shared / ranks`, fitted to the runs on 1 and 2 ranks; `model` is what that predicts for
the others.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STEPS, SKIPPED = 3, 1  # the first step allocates and compiles
PHASES = ("rollout", "score", "update")
WORKLOAD = (
    "model_path=builtin:tiny",
    "trainer.logger=[]",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.val_before_train=false",
    f"trainer.total_training_steps={STEPS}",
    "trainer.test_freq=100",
    "trainer.save_freq=100",
    "trainer.validation_steps=1",
    "es_manager.train.env_groups=8",
    "es_manager.train.group_size=4",
    "es_manager.val.env_groups=2",
    "es_manager.val.group_size=2",
    "agent_proxy.max_turn=2",
    "algorithm.adv_estimator=gae",
    "micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.rollout_filter_ratio=1",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    "actor_rollout_ref.actor.ppo_num_mini_batches=2",
    "actor_rollout_ref.rollout.response_length=64",
)


def worker(strategy: str, folder: Path) -> None:
    """One rank: train, and let rank 0 write everybody's seconds."""
    from spa.config.load import load_config
    from spa.distributed.world import joined
    from spa.recipes import ppo
    from spa.tracking.recorder import Recorder

    seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timer(recorder: Recorder, name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        seconds[name].append(time.process_time() - start)

    Recorder.timer = timer
    overrides = [*WORKLOAD, f"trainer.run_dir={folder / 'run'}", f"actor_rollout_ref.actor.strategy={strategy}"]
    with joined("cpu", 600.0) as world:
        ppo.main(load_config("demo", overrides))
        everybody = world.gather(seconds)
    if world.leads:
        per_step = {
            phase: max(sum(rank[phase][SKIPPED:]) / (STEPS - SKIPPED) for rank in everybody) for phase in PHASES
        }
        (folder / "seconds.json").write_text(json.dumps(per_step))


def measure(ranks: int, strategy: str) -> dict[str, float]:
    """Processor seconds per step and phase on that many ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), __file__]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        command += ["--worker", strategy, folder]
        subprocess.run(command, env=settings, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads((Path(folder) / "seconds.json").read_text())


def modelled(found: dict[int, dict[str, float]], ranks: int) -> dict[str, float]:
    """`alone + shared / ranks` per phase, from the runs on 1 and 2 ranks."""
    shared = {phase: 2 * (found[1][phase] - found[2][phase]) for phase in PHASES}
    return {phase: found[1][phase] - shared[phase] + shared[phase] / ranks for phase in PHASES}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--strategy", nargs="+", default=["ddp", "fsdp"])
    parser.add_argument("--worker", nargs=2, metavar=("STRATEGY", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker[0], Path(options.worker[1]))
        return
    report = {}
    for strategy in options.strategy:
        found = {ranks: measure(ranks, strategy) for ranks in options.ranks}
        report[strategy] = {
            ranks: {
                "seconds": {phase: round(value, 3) for phase, value in phases.items()},
                "model": {phase: round(value, 3) for phase, value in modelled(found, ranks).items()},
            }
            for ranks, phases in found.items()
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

"""Does a PPO step split among ranks as the time model says? Processor seconds per rank and phase, on gloo ranks.

    python benchmarks/ranks.py [--ranks 2 4] [--strategy ddp fsdp]

The model of a phase is `alone + each * groups`: what a process does whatever it plays (launching each of a decoded
token's operations, an optimizer's step) and what every group of episodes that it has adds. Both are fitted to one
process that plays 8, 4 and 2 groups. On N ranks each has 8 / N of the 8 groups; in rollouts it also packs its own
episodes and unpacks everybody's. Then the same 8 groups are played on that many ranks and held against the prediction.

Prints JSON. Seconds are of processor time per step, so that ranks may share cores with each other and with other work:
what a rank would take on a core of its own, without the time that messages travel. `seconds` is the mean of the ranks,
which is what the model is of; `slowest` is the rank that the others wait for. `resident_mb` is the largest rank's peak.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scaling_model import Machine

STEPS, SKIPPED = 9, 1  # the first step allocates and compiles
PHASES = ("rollout", "score", "update")
GROUPS, GROUP_SIZE = 8, 4
SMALL = Path(__file__).with_name("small.yaml")
WORKLOAD = (
    "trainer.val_before_train=false",
    f"trainer.total_training_steps={STEPS}",
    "trainer.test_freq=100",
    "trainer.save_freq=100",
    f"es_manager.train.group_size={GROUP_SIZE}",
    "algorithm.adv_estimator=gae",
    "micro_batch_size_per_gpu=4",
    # so that all runs play the same episodes, whatever they have trained on
    "actor_rollout_ref.actor.optim.lr=1e-12",
    "critic.optim.lr=1e-12",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
)


def worker(strategy: str, groups: int, folder: Path) -> None:
    """One rank: train, and let rank 0 write what everybody took."""
    from spa.config.load import load_config
    from spa.distributed.world import joined
    from spa.recipes import ppo_run
    from spa.run.recorder import Recorder

    seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def timer(recorder: Recorder, name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        seconds[name].append(time.process_time() - start)

    Recorder.timer = timer
    overrides = [
        *WORKLOAD,
        f"es_manager.train.env_groups={groups}",
        f"trainer.run_dir={folder / 'run'}",
        f"actor_rollout_ref.actor.strategy={strategy}",
    ]
    with joined("cpu", 600.0) as world:
        ppo_run.run_ppo(load_config(SMALL, overrides))
        mine = {phase: sum(seconds[phase][SKIPPED:]) / (STEPS - SKIPPED) for phase in PHASES}
        everybody = world.gather(mine)
        resident = world.gather(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    if world.is_main:
        report = {
            "seconds": {
                phase: sum(rank[phase] for rank in everybody) / len(everybody) for phase in PHASES
            },
            "slowest": {phase: max(rank[phase] for rank in everybody) for phase in PHASES},
            "resident_mb": max(resident) / 1e3,
        }
        (folder / "report.json").write_text(json.dumps(report))


def measure(ranks: int, strategy: str, groups: int) -> dict[str, Any]:
    """Processor seconds per step and phase of that many groups on that many ranks."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        __file__,
    ]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        command += ["--worker", strategy, str(groups), folder]
        subprocess.run(
            command, env=settings, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return json.loads((Path(folder) / "report.json").read_text())


def fitted(one_process: Mapping[int, Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Phase -> (alone, each), by least squares from groups -> seconds per phase of a single process."""
    groups = list(one_process)
    lines = {
        phase: np.polyfit(groups, [one_process[n][phase] for n in groups], 1) for phase in PHASES
    }
    return {phase: (float(alone), float(each)) for phase, (each, alone) in lines.items()}


def predicted(model: Mapping[str, tuple[float, float]], ranks: int) -> dict[str, float]:
    """Seconds per phase of a rank among `ranks` that share `GROUPS` groups."""
    seconds = {phase: alone + each * GROUPS / ranks for phase, (alone, each) in model.items()}
    if ranks > 1:
        episodes = GROUPS * GROUP_SIZE
        seconds["rollout"] += episodes / ranks * Machine().pack + episodes * Machine().unpack
    return seconds


def rounded(value: Any) -> Any:
    """Numbers with three digits after the point, however deep."""
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    return round(value, 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--strategy", nargs="+", default=["ddp", "fsdp"])
    parser.add_argument(
        "--worker", nargs=3, metavar=("STRATEGY", "GROUPS", "FOLDER"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.worker:
        strategy, groups, folder = options.worker
        worker(strategy, int(groups), Path(folder))
        return
    one = {groups: measure(1, "ddp", groups) for groups in (GROUPS, GROUPS // 2, GROUPS // 4)}
    model = fitted({groups: point["seconds"] for groups, point in one.items()})
    report = {
        "one_process": one,
        "model": {phase: {"alone": alone, "each": each} for phase, (alone, each) in model.items()},
        "predicted": {ranks: predicted(model, ranks) for ranks in options.ranks},
        "ranks": {
            kind: {n: measure(n, kind, GROUPS) for n in options.ranks} for kind in options.strategy
        },
    }
    print(json.dumps(rounded(report), indent=1))


if __name__ == "__main__":
    main()

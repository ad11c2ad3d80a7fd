"""Does PPO leak? 200 steps with the built-in model and small batches, watched from inside the process.

    python benchmarks/memory_flat.py [--steps 200]

Prints one line of JSON; exit status 1 if resident memory after step 20 leaves 5 % above what it was at step 20, or if
files or threads have become more since.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from spa.config.load import load_config
from spa.recipes import ppo, ppo_run

SETTLED = 20
PAGE = os.sysconf("SC_PAGE_SIZE")
SMALL = Path(__file__).with_name("small.yaml")
OVERRIDES = (
    "trainer.val_before_train=false",
    "trainer.save_freq=25",
    "trainer.test_freq=25",
    "es_manager.train.env_groups=2",
    "algorithm.adv_estimator=gae",
)


def watched(seen: list[tuple[int, int, int]]) -> None:
    """Note (resident bytes, open files, threads) whenever a step gives its memory back."""
    release = ppo.release_memory

    def release_and_look() -> None:
        release()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
        seen.append(
            (resident, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))
        )

    ppo.release_memory = release_and_look


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--model", default="builtin:tiny")
    args = parser.parse_args()
    steps = args.steps
    seen: list[tuple[int, int, int]] = []
    watched(seen)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            *OVERRIDES,
            f"model_path={args.model}",
            f"trainer.total_training_steps={steps}",
            f"trainer.run_dir={folder}/run",
        ]
        ppo_run.run_ppo(load_config(SMALL, overrides))
    at, after = seen[SETTLED - 1], seen[SETTLED:]
    most = max(resident for resident, _, _ in after)
    report = {
        "steps": len(seen),
        "resident_mb_at_step": {
            n: round(seen[n - 1][0] / 1e6, 1) for n in (1, 20, 50, 100, 150, 200) if n <= len(seen)
        },
        "most_resident_mb_after_20": round(most / 1e6, 1),
        "growth_after_20": round(most / at[0] - 1, 4),
        "files": {"at_20": at[1], "most": max(files for _, files, _ in after), "end": seen[-1][1]},
        "threads": {
            "at_20": at[2],
            "most": max(threads for _, _, threads in after),
            "end": seen[-1][2],
        },
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(report))
    flat = most <= 1.05 * at[0] and seen[-1][1] <= at[1] and seen[-1][2] <= at[2]
    return 0 if flat else 1


if __name__ == "__main__":
    raise SystemExit(main())

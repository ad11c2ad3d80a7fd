"""A night of PPO in which everything goes wrong: hundreds of steps of the smallest preset, with faults of every class.

    python tests/siege/overnight.py                      300 steps: `make test-extra NAME=overnight`
    python tests/siege/overnight.py --steps 40 --seed 3

Environments raise, exit, hang, die and return nonsense at drawn puzzles, the engine leaves drawn episodes without an
answer; at drawn steps the run is killed, asked to stop, suspended for longer than it may stand still, started a second
time, loses room on the disk, finds files of its newest checkpoint torn, and clocks jump. It is
started again by the same command until it ends by itself. Then it must be equal, byte for byte, to a run without any of
this in which the same episodes are declared lost (but for the last digits of the engine's log-probs, which depend on who
shares a batch), and memory must not have grown. Prints its seed, what it did and the
outcome, and writes it as `report.json`; exit status 1 if anything is broken.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from bad_luck import HOWS, harm, newest_in
from invariant import (
    LONGEST_S,
    RUN,
    SMALL,
    TESTS,
    Child,
    Siege,
    declare,
    differences,
    launch,
    lost_episodes,
    moving_clock,
    result,
    unlike,
    wrong_ending,
)
from night_env import PLAN
from others_code import HARMLESS, IN_PROCESS, IN_WORKERS

GROUPS, GROUP_SIZE, SEED = 2, 2, 10_000
STALL_S = 45
SUSPENDED_S = 50
LONGEST_LAUNCH_S = 4 * 3600  # its watchdog ends it long before
ROOM = 10_000  # bytes that a file may have while the disk is full
EVENTS = {
    "kill": 4,
    "stop": 2,
    "suspend": 2,
    "twice": 2,
    "disk": 3,
    "torn": 6,
    "clock": 6,
    "times": 2,
}
"""How often what is done to the run from outside."""
UNANSWERED = 6  # episodes
FLAT = 1.05
"""The last third of a run may have so much more memory than the second."""


def words(siege: Siege, steps: int) -> list[str]:
    """The smallest PPO: four episodes of two turns on a 3x3 lake."""
    env = "{env_type: 'night_env:Night', max_actions_per_traj: 9, env_config: {size: 3}}"
    tags = [
        f"es_manager.{split}.env_configs={{tags: [Night], n_groups: null}}"
        for split in ("train", "val")
    ]
    return [
        "run", "base", "--stages", "ppo", *SMALL, f"model_path={siege.model}", f"trainer.run_dir={RUN}", f"+custom_envs.Night={env}", *tags,
        f"trainer.total_training_steps={steps}", "trainer.save_freq=10", "trainer.max_actor_ckpt_to_keep=2",
        "trainer.threads=1", f"trainer.stall_timeout_s={STALL_S}", f"seed.train={SEED}", "agent_proxy.max_turn=2",
        f"es_manager.train.env_groups={GROUPS}", f"es_manager.train.group_size={GROUP_SIZE}",
        "es_manager.val.env_groups=1", "es_manager.val.group_size=1", "es_manager.env_workers=1",
        "es_manager.env_timeout_s=5", "actor_rollout_ref.rollout.name=night_engine:UNRELIABLE",
    ]  # fmt: skip


def faults(rng: np.random.Generator, steps: int) -> dict[str, Any]:
    """Every kind of fault of environments at a puzzle of its own, and episodes that the engine does not answer."""
    kinds = [*IN_PROCESS, *IN_WORKERS]
    chosen = rng.choice(steps * GROUPS, size=min(len(kinds), steps * GROUPS), replace=False)
    puzzles = {str(SEED + int(place)): kind for place, kind in zip(chosen, kinds, strict=False)}
    sampled = [
        (rng.integers(steps), rng.integers(GROUPS), rng.integers(GROUP_SIZE))
        for _ in range(UNANSWERED)
    ]
    return {
        "puzzles": puzzles,
        "episodes": [f"train/{step}/{group}/{member}" for step, group, member in sampled],
    }


def events(rng: np.random.Generator, steps: int) -> list[tuple[int, str]]:
    """(step, what is done to the run then), in order."""
    kinds = [kind for kind, count in EVENTS.items() for _ in range(count)]
    return sorted((int(rng.integers(1, steps)), kind) for kind in kinds)


class Night:
    """A run, what is still going to happen to it, and what has gone wrong otherwise."""

    def __init__(
        self, siege: Siege, folder: Path, command: list[str], todo: list[tuple[int, str]]
    ) -> None:
        self.siege, self.folder, self.command, self.todo = siege, folder, command, todo
        self.rng = siege.rng("events")
        self.done: Counter[str] = Counter()
        self.launches = 0

    def pass_by(self) -> None:
        """Start the command again until it ends by itself."""
        while not self.broken_off():
            if self.one_launch() == "ended":
                return
        self.siege.judge("overnight", "launches", "", f"broken off after {self.launches} launches")

    def broken_off(self) -> bool:
        """Whether this can come to no good end any more."""
        return bool(self.siege.broken) or self.launches > 3 * sum(EVENTS.values())

    def one_launch(self) -> str:
        """Start the command, and do to it what is due; "ended" if it came to its end."""
        child = launch(self.folder, self.command, before=moving_clock(self.folder / "clock"))
        self.launches += 1
        expected = (0,)
        while (status := child.wait(LONGEST_LAUNCH_S, until=self.is_due)) is None:
            if not self.is_due():
                self.siege.judge(
                    "overnight", "launch", "", f"did not end within {LONGEST_LAUNCH_S} s"
                )
                return self.kill(child)
            _, kind = self.todo.pop(0)
            self.done[kind] += 1
            if getattr(self, kind)(child) == "gone":
                return "gone"
            expected = (2,) if kind == "disk" else expected
        problem = wrong_ending(status, child.log.read_text(errors="replace"))
        if not problem and status not in expected:
            problem = f"status {status} instead of {expected}: {child.log.read_text()[-400:]}"
        self.siege.judge("overnight", f"launch {self.launches}", f"status {status}", problem)
        return "ended" if status == 0 else "refused"

    def is_due(self) -> bool:
        """Whether something is to happen at the step that the run has reached."""
        return bool(self.todo) and steps_made(self.folder) >= self.todo[0][0]

    def kill(self, child: Child) -> str:
        """SIGKILL."""
        child.kill()
        child.wait(60)
        return "gone"

    def stop(self, child: Child) -> str:
        """SIGTERM, after which a run saves and ends."""
        child.kill(signal.SIGTERM)
        status = child.wait(LONGEST_S)
        problem = "" if status in (0, 143) else f"status {status} after SIGTERM"
        self.siege.judge("overnight", "asked to stop", "saved and ended", problem)
        return "gone"

    def suspend(self, child: Child) -> None:
        """SIGSTOP, for longer than the run may stand still."""
        child.kill(signal.SIGSTOP)
        time.sleep(SUSPENDED_S)
        child.kill(signal.SIGCONT)

    def twice(self, child: Child) -> None:
        """The same command, while it runs."""
        child.kill(signal.SIGSTOP)
        second = launch(self.folder, self.command, output="second.txt")
        status = second.wait(LONGEST_S)
        child.kill(signal.SIGCONT)
        problem = wrong_ending(status, second.log.read_text()) or (
            "" if status == 2 else f"status {status}"
        )
        self.siege.judge("overnight", "second of two", "refused", problem)

    def disk(self, child: Child) -> None:
        """No file can grow any more."""
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (ROOM, resource.RLIM_INFINITY))

    def torn(self, child: Child) -> str:
        """Killed; then a file of the newest checkpoint is torn or gone."""
        self.kill(child)
        stage = self.folder / RUN / "ppo"
        if any(stage.glob("global_step_*")):
            files = sorted(
                path
                for path in newest_in(stage).rglob("*")
                if path.is_file() and path.stat().st_size
            )
            harm(files[self.rng.integers(len(files))], str(self.rng.choice(HOWS)))
        return "gone"

    def clock(self, child: Child) -> None:
        """The time of day jumps, by up to 68 years in either direction."""
        (self.folder / "clock").write_text(str(self.rng.integers(-(2**31), 2**31)))

    def times(self, child: Child) -> str:
        """Killed; then every file says that it was written at some other time."""
        self.kill(child)
        for path in (path for path in (self.folder / RUN).rglob("*") if path.is_file()):
            moment = int(self.rng.integers(0, 2**32))
            os.utime(path, (moment, moment))
        return "gone"


def steps_made(folder: Path) -> int:
    """How many lines the record of a run has: one for each step."""
    path = folder / RUN / "ppo" / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def undisturbed(folder: Path, command: list[str]) -> tuple[int | None, list[tuple[int, int]]]:
    """Exit status of a run to which nothing is done, and its memory: (step, bytes) whenever it was looked at."""
    child, seen = launch(folder, command), []

    def look() -> bool:
        fields = Path(f"/proc/{child.pid}/statm").read_text().split()
        seen.append((steps_made(folder), int(fields[1]) * resource.getpagesize()))
        time.sleep(0.2)
        return False

    return child.wait(LONGEST_LAUNCH_S, until=look), seen


def growth(seen: list[tuple[int, int]], steps: int) -> float:
    """Memory of the last third of a run relative to the second third."""
    second = [size for step, size in seen if steps / 3 <= step < 2 * steps / 3]
    last = [size for step, size in seen if step >= 2 * steps / 3]
    return median(last) / median(second) if second and last else float("nan")


def held_against(
    siege: Siege, there: Path, declared: Path, command: list[str], steps: int
) -> dict[str, Any]:
    """Make the run that the night must be equal to, and judge both; returns figures of them."""
    lost = lost_episodes(there)
    declare(declared, lost)
    status, seen = undisturbed(declared, command)
    known = {row["episode_id"] for row in lost}
    own = [
        f"{row['episode_id']} ({row['reason']})"
        for row in lost_episodes(declared)
        if row["episode_id"] not in known
    ]
    if own:  # somebody else's doing: nothing is done to this run
        siege.judge(
            "overnight", "undisturbed run", "", f"it lost episodes of its own: {', '.join(own)}"
        )
    try:
        changed = (
            differences(result(there), result(declared)) if status == 0 else [f"status {status}"]
        )
    except (AssertionError, OSError, ValueError, KeyError) as error:
        # a checkpoint is not what it says
        changed = [f"{type(error).__name__}: {error}"]
    wrong, rounded = unlike(there, declared, changed)
    siege.judge(
        "overnight", "result", "equal to the run with these declared lost", ", ".join(wrong[:6])
    )
    grown = growth(seen, steps)
    siege.judge(
        "overnight", "memory", "flat", "" if grown <= FLAT else f"grew by a factor of {grown:.3f}"
    )
    return {
        "lost": len(lost),
        "files with other last digits": len(rounded),
        "memory": round(grown, 4),
    }


def main() -> int:
    """The night, and the run that it must be equal to; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/overnight"))
    args = parser.parse_args()
    root = args.folder.resolve()
    shutil.rmtree(root, ignore_errors=True)
    places = [str(TESTS / "envs"), str(TESTS / "siege"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(places)
    import spa.recipes.ppo  # noqa: F401 - imported once for all launches

    siege, started = Siege(root, args.seed), time.monotonic()
    there, declared, command = root / "night", root / "declared", words(siege, args.steps)
    plan = faults(siege.rng("faults"), args.steps)
    harmless = {seed: HARMLESS[kind] for seed, kind in plan["puzzles"].items() if kind in HARMLESS}
    for folder, content in ((there, plan), (declared, {"puzzles": harmless, "episodes": []})):
        folder.mkdir(parents=True)
        (folder / PLAN).write_text(json.dumps(content))
    night = Night(siege, there, command, events(siege.rng("moments"), args.steps))
    sys.stdout.write(f"seed {args.seed}\nfaults {json.dumps(plan)}\nevents {night.todo}\n")
    night.pass_by()
    compared = {} if siege.broken else held_against(siege, there, declared, command, args.steps)
    figures = {
        "seed": args.seed, "steps": args.steps, "launches": night.launches, "done": dict(night.done),
        "faults of environments": len(plan["puzzles"]), "episodes": args.steps * GROUPS * GROUP_SIZE, **compared,
        "counts": siege.counts["overnight"], "broken": siege.broken, "s": round(time.monotonic() - started),
    }  # fmt: skip
    (root / "report.json").write_text(json.dumps(figures, indent=1))
    sys.stdout.write("\n".join(f"{name}: {value}" for name, value in figures.items()) + "\n")
    return 1 if siege.broken else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Kill a run again and again, harm its files, and hold what comes out against a run that nothing happened to.

    python tests/chaos/chaos.py                     20 kills and every fault, a preset of a few steps (make chaos)
    python tests/chaos/chaos.py --kills 2 --faults torn --model FOLDER
    python tests/chaos/chaos.py --demo              the demo itself, killed three times (an hour)

Every launch is a process of its own that runs `spa run`. It is forked from this one, which has imported the libraries
and done nothing with them: that saves their start-up twenty times over. A run is killed with SIGKILL at a random moment,
every third time in the middle of a save, and started again with the same command until it is done. Then metrics without
times, data, episodes, gate and the checksums of every checkpoint must be those of the undisturbed run, byte for byte.
Prints one line of JSON; exit status 1 if anything differs.
"""

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

RUN = "run"
RECORDS = ("data/metrics.jsonl", "data/summary.json", "data/*.parquet", "sft/metrics.jsonl", "sft/gate.json",
           "sft/extra_*/metrics.jsonl", "ppo/metrics.jsonl", "*/trajectories/*.jsonl", "*/token_scores/*.jsonl",
           "sft/extra_*/trajectories/*.jsonl")  # fmt: skip
CHECKPOINTS = ("sft/global_step_*", "sft/extra_*/global_step_*", "ppo/global_step_*")
PRESET = (
    "demo",
    "trainer.total_training_steps=6",
    "trainer.save_freq=1",
    "trainer.test_freq=3",
    "trainer.max_actor_ckpt_to_keep=2",
    "trainer.logger=[]",
    "trainer.device=cpu",
    "trainer.threads=1",
    "es_manager.train.env_groups=3",
    "es_manager.train.group_size=4",
    "es_manager.val.env_groups=2",
    "es_manager.val.group_size=2",
    "agent_proxy.max_turn=2",
    "actor_rollout_ref.rollout.rollout_filter_ratio=1",
    "actor_rollout_ref.actor.ppo_num_mini_batches=2",
    "actor_rollout_ref.rollout.response_length=64",
    "generate.num_batches=4",
    "sft.data.train_batch_size=4",
    "sft.data.micro_batch_size_per_gpu=4",
    "sft.trainer.total_training_steps=8",
    "sft.trainer.save_freq=2",
    "sft.trainer.test_freq=4",
    "sft.trainer.keep=2",
    "sft.trainer.eval_episodes=4",
    "gate.prediction_exact_min=0.999",
    "gate.max_extra_rounds=1",
    "gate.extra_steps=2",
    "gate.time_cap_s=null",
)
DEMO = ("demo", "trainer.logger=[]", "gate.time_cap_s=null")
LONGEST_LAUNCH_S = 7200
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Child:
    """One launch of the command."""

    pid: int
    log: Path
    started: float = field(default_factory=time.monotonic)

    def cpu_s(self) -> float:
        """Seconds of processor time that it has used: moments of a run that do not depend on what else the machine does."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> int | None:
        """The exit status, negative for a signal; None if it is still running after `seconds` or when `until` is so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if until():
                return None
            time.sleep(0.02)
        return None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def end(self) -> int:
        """Wait for the end; a launch that does not end is killed and is an error."""
        status = self.wait(LONGEST_LAUNCH_S)
        if status is None:
            self.kill()
            self.wait(60)
            raise SystemExit(f"a launch did not end within {LONGEST_LAUNCH_S} s; see {self.log}")
        return status


def launch(folder: Path, words: list[str], *, file_limit: int | None = None) -> Child:
    """`spa run` with its run directory in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "output.txt"
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(pid, log)
    status = 70
    try:
        os.chdir(folder)
        os.setsid()
        with log.open("a") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        from spa.cli import main

        status = main(["run", *words, f"trainer.run_dir={RUN}"])
    except BaseException:  # noqa: BLE001 - a child must never go on with what its parent does
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def children_cpu_s() -> float:
    """Processor time of all launches that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def finish(folder: Path, words: list[str]) -> None:
    """Start the command, undisturbed, and see it succeed."""
    child = launch(folder, words)
    status = child.end()
    if status != 0:
        raise SystemExit(f"status {status}:\n{child.log.read_text()[-3000:]}")


def digest(path: Path) -> str:
    """Of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def result(folder: Path) -> dict[str, str]:
    """Everything that must be the same: file -> checksum. Checkpoints are checked against their own marks, too."""
    run = folder / RUN
    found = {str(path.relative_to(run)): digest(path) for pattern in RECORDS for path in run.glob(pattern)}
    for pattern in CHECKPOINTS:
        for checkpoint in run.glob(pattern):
            sums = json.loads((checkpoint / "complete.json").read_text())["sha256"]
            for name, expected in sums.items():
                assert digest(checkpoint / name) == expected, f"{checkpoint / name} is not what its mark says"
                found[str((checkpoint / name).relative_to(run))] = expected
    return found


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Names of what differs or is missing."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def newest(folder: Path, stage: str) -> Path:
    """The newest checkpoint of a stage."""
    return max((folder / RUN / stage).glob("global_step_*"), key=lambda path: int(path.name.rpartition("_")[2]))


def stages(folder: Path) -> str:
    """Which stage a run is in."""
    run = folder / RUN
    return "ppo" if (run / "sft/done.json").exists() else "sft" if (run / "data/done.json").exists() else "data"


def is_saving(folder: Path) -> bool:
    """Whether a checkpoint is being written."""
    return any(any((folder / RUN).glob(f"{stage}/.saving_*")) for stage in ("sft", "sft/extra_1", "ppo"))


def killed_until_done(
    folder: Path, words: list[str], rng: np.random.Generator, kills: int, whole_s: float
) -> list[str]:
    """Start and kill a run up to `kills` times at random moments, then let it end; returns the stages it was hit in."""
    hit: list[str] = []
    while len(hit) < kills:
        child = launch(folder, words)
        if rng.random() < 1 / 3:
            status = child.wait(LONGEST_LAUNCH_S, until=lambda: is_saving(folder))
        else:
            moment = float(rng.uniform(0.02, 0.6)) * whole_s
            status = child.wait(LONGEST_LAUNCH_S, until=lambda child=child, moment=moment: child.cpu_s() >= moment)
        if status is not None:
            assert status == 0, f"status {status}:\n{child.log.read_text()[-3000:]}"
            return hit
        hit.append(stages(folder))
        child.kill()
        assert child.wait(60) == -signal.SIGKILL
    finish(folder, words)
    return hit


def torn(folder: Path) -> None:
    """The newest checkpoint is only half there."""
    path = newest(folder, "ppo") / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(folder: Path) -> None:
    """One bit of the newest checkpoint's optimiser state has changed."""
    path = newest(folder, "ppo") / "state" / "tensors.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def deleted(folder: Path) -> None:
    """The newest checkpoint is gone."""
    shutil.rmtree(newest(folder, "ppo"))


def deleted_sft(folder: Path) -> None:
    """The checkpoint that PPO started from is gone."""
    shutil.rmtree(max((folder / RUN / "sft").glob("extra_*")))


def torn_records(folder: Path) -> None:
    """A mark is empty, and the last line of the record was cut off."""
    (folder / RUN / "sft" / "done.json").write_text("")
    with (folder / RUN / "ppo" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "train/')


FAULTS: dict[str, Callable[[Path], None]] = {
    "torn": torn,
    "flipped": flipped,
    "deleted": deleted,
    "deleted_sft": deleted_sft,
    "torn_records": torn_records,
}


def harmed(folder: Path, words: list[str], harm: Callable[[Path], None]) -> None:
    """Kill a run in its third stage, harm its files, let it end."""
    child = launch(folder, words)
    status = child.wait(LONGEST_LAUNCH_S, until=lambda: len(list((folder / RUN / "ppo").glob("global_step_*"))) >= 2)
    if status is None:
        child.kill()
        child.wait(60)
    harm(folder)
    finish(folder, words)


def full_disk(folder: Path, words: list[str]) -> None:
    """Files cannot grow beyond a limit, in one stage after the other; then there is room again."""
    for limit in (2_000, 60_000, 400_000, 1_500_000):
        child = launch(folder, words, file_limit=limit)
        status = child.end()
        text = child.log.read_text()
        assert status in (0, 2) and "Traceback" not in text, f"limit {limit}: status {status}\n{text[-3000:]}"
    finish(folder, words)


def asked_to_stop(folder: Path, words: list[str], rng: np.random.Generator, whole_s: float) -> list[float]:
    """SIGTERM at random moments until the run is done; returns the seconds that each took to end."""
    seconds: list[float] = []
    while True:
        child = launch(folder, words)
        moment = float(rng.uniform(0.1, 0.5)) * whole_s
        status = child.wait(LONGEST_LAUNCH_S, until=lambda child=child, moment=moment: child.cpu_s() >= moment)
        if status is not None:
            assert status == 0, child.log.read_text()[-3000:]
            return seconds
        child.kill(signal.SIGTERM)
        asked = time.monotonic()
        status = child.end()
        seconds.append(time.monotonic() - asked)
        assert status == 0, f"status {status} after SIGTERM:\n{child.log.read_text()[-3000:]}"
        if len(seconds) >= 8:
            finish(folder, words)
            return seconds


def scenarios(
    args: argparse.Namespace, root: Path, words: list[str], whole_s: float
) -> Iterator[tuple[str, Path, object]]:
    """Everything that is done to a run: name, folder, what there is to say."""
    rng = np.random.Generator(np.random.PCG64(args.seed))
    left, number = args.kills, 0
    while left > 0:
        folder = root / f"killed-{number}"
        hit = killed_until_done(folder, words, rng, left, whole_s)
        left, number = left - len(hit), number + 1
        yield folder.name, folder, hit
    for name in args.faults:
        folder = root / name
        if name == "full_disk":
            yield name, folder, full_disk(folder, words)
        elif name == "sigterm":
            yield name, folder, asked_to_stop(folder, words, rng, whole_s)
        else:
            yield name, folder, harmed(folder, words, FAULTS[name])


def main() -> int:
    """Run every scenario; returns the exit status."""
    every = [*FAULTS, "full_disk", "sigterm"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--faults", nargs="*", default=None, choices=every)
    parser.add_argument("--model", default="builtin:tiny")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/chaos"))
    parser.add_argument("--demo", action="store_true", help="the demo itself, killed three times")
    args = parser.parse_args()
    if args.demo:
        args.kills, args.faults = 3, args.faults or []
    args.faults = every if args.faults is None else args.faults
    words = [*(DEMO if args.demo else PRESET), f"model_path={args.model}"]
    root = args.folder.resolve()
    if root.exists():
        shutil.rmtree(root)
    import spa.recipes.pipeline  # noqa: F401 - imported once for all launches

    started, before = time.monotonic(), children_cpu_s()
    finish(root / "undisturbed", words)
    whole_s = children_cpu_s() - before
    expected = result(root / "undisturbed")
    kills: list[str] = []
    report: dict[str, object] = {"undisturbed_cpu_s": round(whole_s, 1), "files": len(expected)}
    wrong: dict[str, list[str]] = {}
    for name, folder, told in scenarios(args, root, words, whole_s):
        changed = differences(expected, result(folder))
        sys.stderr.write(f"{name}: {'equal' if not changed else f'DIFFERS: {changed[:5]}'} {told or ''}\n")
        if changed:
            wrong[name] = changed
        elif name == "sigterm":
            report["sigterm_s"] = [round(seconds, 2) for seconds in told]  # type: ignore[union-attr]
        if name.startswith("killed"):
            kills += told  # type: ignore[operator]
    report |= {
        "kills": {stage: kills.count(stage) for stage in ("data", "sft", "ppo")},
        "faults": args.faults,
        "different": wrong,
        "seconds": round(time.monotonic() - started, 1),
    }
    sys.stdout.write(json.dumps(report) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

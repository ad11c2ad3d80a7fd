"""Kill a run again and again, harm its files, and hold what comes out against a run that nothing happened to.

    python tests/chaos/chaos.py                     20 kills and every fault, a preset of a few steps
    python tests/chaos/chaos.py --kills 2 --faults torn --model FOLDER
    python tests/chaos/chaos.py --ray PYTHON        and a worker of Ray's killed, by a Python that has Ray (make test-extra NAME=chaos)
    python tests/chaos/chaos.py --tiny              the preset tiny itself, killed three times (an hour)

Every launch is a process of its own that runs `spa run`. It is forked from this one, which has imported the libraries
and done nothing with them: that saves their start-up twenty times over. A run is killed with SIGKILL at a random moment,
every third time in the middle of a save, and started again with the same command until it is done. Then metrics without
times, data, episodes, gate and the checksums of every checkpoint must be those of the undisturbed run, byte for byte.
Prints a table of what was done and whether it mattered, and writes it as `report.json`; exit status 1 if anything
differs.
"""

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

RUN = "run"
RECORDS = ("data/metrics.jsonl", "data/summary.json", "data/*.parquet", "sft/metrics.jsonl", "sft/gate.json",
           "ppo/metrics.jsonl", "*/trajectories/*.jsonl", "*/token_scores/*.jsonl")  # fmt: skip
CHECKPOINTS = ("sft/global_step_*", "ppo/global_step_*")
PRESET = (
    str(Path(__file__).parents[2] / "benchmarks" / "small.yaml"),
    "trainer.total_training_steps=4",
    "trainer.save_freq=1",
    "trainer.test_freq=2",
    "trainer.max_actor_ckpt_to_keep=2",
    "es_manager.train.env_groups=3",
    "generate.num_batches=2",
    "sft.data.train_batch_size=4",
    "sft.data.micro_batch_size_per_gpu=4",
    "sft.trainer.total_training_steps=4",
    "sft.trainer.save_freq=1",
    "sft.trainer.test_freq=2",
    "sft.trainer.keep=2",
    "sft.trainer.eval_episodes=4",
    "gate.prediction_exact_min=0.999",
)
TINY = ("tiny", "trainer.logger=[]")
STAGES = ("data", "sft", "ppo")
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


def launch_run(folder: Path, words: Sequence[str], *, file_limit: int | None = None) -> Child:
    """`spa run` with its run directory in `folder`; what earlier launches said there is kept."""

    def before() -> None:
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    return launch(folder, ["run", *words, f"trainer.run_dir={RUN}"], log_mode="a", before=before)


def launch(
    folder: Path,
    words: Sequence[str],
    *,
    output: str = "output.txt",
    log_mode: str = "w",
    before: Callable[[], None] = lambda: None,
) -> Child:
    """A command of spa in a process of its own, forked from this one, which has the libraries. `before` is called in
    it first; what it says is in the file `output`."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / output
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(pid, log)
    status = 70
    try:
        os.chdir(folder)
        with log.open(log_mode) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        # processes that it starts do not import this script
        sys.modules["__main__"] = types.ModuleType("__main__")
        before()
        from spa.cli import main

        status = main(list(words))
    except BaseException:  # noqa: BLE001 - a child must never go on with what its parent does
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
    child = launch_run(folder, words)
    status = child.end()
    if status != 0:
        raise SystemExit(f"status {status}:\n{child.log.read_text()[-3000:]}")


def digest(path: Path) -> str:
    """Of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def result(folder: Path) -> dict[str, str]:
    """Everything that must be the same: file -> checksum. Checkpoints are checked against their own marks, too."""
    run = folder / RUN
    found = {
        str(path.relative_to(run)): digest(path)
        for pattern in RECORDS
        for path in run.glob(pattern)
    }
    for pattern in CHECKPOINTS:
        for checkpoint in run.glob(pattern):
            sums = json.loads((checkpoint / "complete.json").read_text())["sha256"]
            for name, expected in sums.items():
                assert digest(checkpoint / name) == expected, (
                    f"{checkpoint / name} is not what its mark says"
                )
                found[str((checkpoint / name).relative_to(run))] = expected
    return found


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Names of what differs or is missing."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def newest(folder: Path, stage: str) -> Path:
    """The newest checkpoint of a stage."""
    return max(
        (folder / RUN / stage).glob("global_step_*"),
        key=lambda path: int(path.name.rpartition("_")[2]),
    )


def stages(folder: Path) -> str:
    """Which stage a run is in."""
    run = folder / RUN
    return "ppo" if is_finished(run / "sft") else "sft" if is_finished(run / "data") else "data"


def is_finished(stage: Path) -> bool:
    """Whether a stage is recorded as finished."""
    path = stage / "manifest.json"
    return path.exists() and json.loads(path.read_text())["result"] is not None


def is_saving(folder: Path) -> bool:
    """Whether a checkpoint is being written."""
    return any(any((folder / RUN).glob(f"{stage}/.saving_*")) for stage in ("sft", "ppo"))


def killed_until_done(
    folder: Path, words: list[str], rng: np.random.Generator, kills: int, whole_s: float
) -> list[str]:
    """Start and kill a run up to `kills` times at random moments, then let it end; returns the stages it was hit in."""
    hit: list[str] = []
    while len(hit) < kills:
        child = launch_run(folder, words)
        if rng.random() < 1 / 3:
            status = child.wait(LONGEST_LAUNCH_S, until=lambda: is_saving(folder))
        else:
            moment = float(rng.uniform(0.02, 0.6)) * whole_s
            status = child.wait(
                LONGEST_LAUNCH_S, until=lambda child=child, moment=moment: child.cpu_s() >= moment
            )
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


def deleted(folder: Path) -> None:
    """The newest checkpoint is gone."""
    shutil.rmtree(newest(folder, "ppo"))


def deleted_sft(folder: Path) -> None:
    """The checkpoint that PPO started from is gone."""
    shutil.rmtree(newest(folder, "sft"))


def torn_records(folder: Path) -> None:
    """A manifest is empty, and the last line of the record was cut off."""
    (folder / RUN / "sft" / "manifest.json").write_text("")
    with (folder / RUN / "ppo" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "train/')


FAULTS: dict[str, Callable[[Path], None]] = {
    "torn": torn,
    "deleted": deleted,
    "deleted_sft": deleted_sft,
    "torn_records": torn_records,
}


def harmed(folder: Path, words: list[str], harm: Callable[[Path], None]) -> None:
    """Kill a run in its third stage, harm its files, let it end."""
    child = launch_run(folder, words)
    status = child.wait(
        LONGEST_LAUNCH_S, until=lambda: len(list((folder / RUN / "ppo").glob("global_step_*"))) >= 2
    )
    if status is None:
        child.kill()
        child.wait(60)
    harm(folder)
    finish(folder, words)


def full_disk(folder: Path, words: list[str]) -> None:
    """Files cannot grow beyond a limit, in one stage after the other; then there is room again."""
    for limit in (2_000, 60_000, 400_000, 1_500_000):
        child = launch_run(folder, words, file_limit=limit)
        status = child.end()
        text = child.log.read_text()
        assert status in (0, 2) and "Traceback" not in text, (
            f"limit {limit}: status {status}\n{text[-3000:]}"
        )
    finish(folder, words)


def asked_to_stop(
    folder: Path, words: list[str], rng: np.random.Generator, whole_s: float
) -> list[float]:
    """SIGTERM at random moments until the run is done; returns the seconds that each took to end."""
    seconds: list[float] = []
    while True:
        child = launch_run(folder, words)
        moment = float(rng.uniform(0.1, 0.5)) * whole_s
        status = child.wait(
            LONGEST_LAUNCH_S, until=lambda child=child, moment=moment: child.cpu_s() >= moment
        )
        if status is not None:
            assert status == 0, child.log.read_text()[-3000:]
            return seconds
        child.kill(signal.SIGTERM)
        asked = time.monotonic()
        status = child.end()
        seconds.append(time.monotonic() - asked)
        assert status in (0, 143), (
            f"status {status} after SIGTERM:\n{child.log.read_text()[-3000:]}"
        )
        if len(seconds) >= 8:
            finish(folder, words)
            return seconds


@dataclass
class Row:
    """A line of the table: what was done to a run, what there is to say about it, and what it changed."""

    name: str
    done: str
    told: str
    changed: list[str]


def scenarios(
    args: argparse.Namespace, root: Path, words: list[str], whole_s: float
) -> Iterator[tuple[Path, Row]]:
    """Everything that is done to a run, and the folder that must be like the undisturbed one's."""
    rng = np.random.Generator(np.random.PCG64(args.seed))
    left, number = args.kills, 0
    while left > 0:
        folder = root / f"killed-{number}"
        hit = killed_until_done(folder, words, rng, left, whole_s)
        left, number = left - len(hit), number + 1
        yield (
            folder,
            Row(
                "killed",
                f"SIGKILL {len(hit)} times",
                ", ".join(f"{hit.count(s)} {s}" for s in STAGES),
                [],
            ),
        )
    for name in args.faults:
        folder = root / name
        if name == "full_disk":
            full_disk(folder, words)
            yield folder, Row(name, "No room on the disk, four times.", "", [])
        elif name == "sigterm":
            seconds = asked_to_stop(folder, words, rng, whole_s)
            told = f"saved and ended after {', '.join(f'{number:.1f}' for number in seconds)} s"
            yield folder, Row(name, f"SIGTERM {len(seconds)} times", told, [])
        else:
            harmed(folder, words, FAULTS[name])
            yield folder, Row(name, FAULTS[name].__doc__ or "", "", [])


def ray_worker(python: str) -> Row:
    """One of two workers of Ray is killed; that run has an undisturbed one of its own to be like."""
    tests = Path(__file__).parents[1] / "ray" / "ray_launcher.py"
    command = [python, "-m", "pytest", str(tests), "-k", "killed_worker"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    status = subprocess.run(command, env=environment, stdout=sys.stderr, check=False).returncode
    return Row(
        "ray_worker",
        "SIGKILL to one of two Ray workers",
        "",
        [f"pytest: status {status}"] if status else [],
    )


def table(rows: list[Row]) -> str:
    """Markdown: what was done, and whether the run ended as an undisturbed one."""
    lines = ["| done to a run | | ended as an undisturbed one |", "|---|---|---|"]
    verdicts = [
        f"NO: {', '.join(row.changed[:5])}" if row.changed else "yes, byte for byte" for row in rows
    ]
    return "\n".join(
        [*lines, *(f"| {r.done} | {r.told} | {v} |" for r, v in zip(rows, verdicts, strict=True))]
    )


def arguments() -> argparse.Namespace:
    """Of the command line."""
    every = [*FAULTS, "full_disk", "sigterm"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--faults", nargs="*", default=None, choices=every)
    parser.add_argument("--model", default="builtin:tiny")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/chaos"))
    parser.add_argument(
        "--tiny", action="store_true", help="the preset tiny itself, killed three times"
    )
    parser.add_argument("--ray", metavar="PYTHON", help="kill a Ray worker, too, with this Python")
    args = parser.parse_args()
    if args.tiny:
        args.kills, args.faults = 3, args.faults or []
    args.faults = every if args.faults is None else args.faults
    return args


def main() -> int:
    """Run every scenario; returns the exit status."""
    args = arguments()
    words = [*(TINY if args.tiny else PRESET), f"model_path={args.model}"]
    root = args.folder.resolve()
    if root.exists():
        shutil.rmtree(root)
    import spa.recipes.pipeline  # noqa: F401 - imported once for all launches

    started, before = time.monotonic(), children_cpu_s()
    finish(root / "undisturbed", words)
    whole_s = children_cpu_s() - before
    expected = result(root / "undisturbed")
    rows: list[Row] = []
    for folder, row in scenarios(args, root, words, whole_s):
        rows.append(replace(row, changed=differences(expected, result(folder))))
        sys.stderr.write(
            f"{folder.name}: {'DIFFERS' if rows[-1].changed else 'equal'} {row.told}\n"
        )
    if args.ray:
        rows.append(ray_worker(args.ray))
    wrong = [row for row in rows if row.changed]
    verdict = (
        f"{len(wrong)} of {len(rows)} runs DIFFER from"
        if wrong
        else f"All {len(rows)} runs ended as"
    )
    figures = {
        "files": len(expected),
        "undisturbed_cpu_s": round(whole_s, 1),
        "s": round(time.monotonic() - started, 1),
    }
    (root / "report.json").write_text(
        json.dumps(figures | {"rows": [asdict(row) for row in rows]}, indent=1)
    )
    sys.stdout.write(
        f"{table(rows)}\n\n{verdict} the undisturbed one: {figures['files']} files, "
        f"{figures['undisturbed_cpu_s']} s of processor time. All of it took {figures['s']} s.\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

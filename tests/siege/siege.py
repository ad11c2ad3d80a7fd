"""Besiege a run with other people's code and bad luck, and hold what comes out against one that nothing happened to.

    python tests/siege/siege.py                          everything: `make siege`
    python tests/siege/siege.py --only config --cases 40
    python tests/siege/siege.py --only environments --faults raise,exit

One invariant. A fault that loses no episode changes no byte of the result. One that loses some ends as a run in which the
same episodes are declared lost. Everything else is one message, without a traceback, and an exit status that is not 0.
Nothing hangs. Prints its seed, its counts and what broke the invariant; exit status 1 if anything did.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "envs"), str(TESTS / "chaos")]

from chaos import RUN, Child, differences, launch, result  # noqa: E402 - found through the path above
from helpers.runs import SMALL, make_base  # noqa: E402

from spa.training.checkpoint import damage as found_damage  # noqa: E402
from spa.training.checkpoint import step_of  # noqa: E402

IN_PROCESS = (
    "raise", "exit", "interrupt", "generator", "base", "memory", "huge", "bytes", "nan", "overflow", "words", "none",
    "four", "info", "reset", "hang",
)  # fmt: skip
IN_WORKERS = ("die", "die_in_reset", "spin", "objects")
LONGEST_S = 300
STAGE_WORDS = (*SMALL, "trainer.total_training_steps=2", "trainer.save_freq=1", "trainer.threads=1")
RUN_WORDS = (
    *STAGE_WORDS, "generate.num_batches=1", "sft.trainer.total_training_steps=2", "sft.trainer.eval_episodes=2",
    "gate.enable=true", "gate.prediction_exact_min=0", "gate.format_min=0", "gate.observation_exact_min=0",
    "gate.changed_f1_min=0", "gate.entropy_min=0",
)  # fmt: skip
FOR_PEOPLE = ("log.txt", "timings.jsonl", "config.yaml", "summary.json", "trajectories", "token_scores", "previous")
"""Parts of a run that no stage goes on from: they are not made again, and nothing is trained on them."""


class Siege:
    """The counts, and what broke the invariant."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.model = make_base(folder / "model")
        self.counts: dict[str, dict[str, int]] = {}
        self.broken: list[str] = []

    def count(self, part: str, outcome: str) -> None:
        """One more case of a part that ended in this way."""
        found = self.counts.setdefault(part, {})
        found[outcome] = found.get(outcome, 0) + 1

    def judge(self, part: str, name: str, outcome: str, problem: str) -> None:
        """Count a case, and keep what is wrong with it ("" if nothing is)."""
        self.count(part, outcome if not problem else "BROKEN")
        if problem:
            self.broken.append(f"{part}: {name}: {problem}")
            sys.stderr.write(f"BROKEN {self.broken[-1]}\n")

    def rng(self, name: str) -> np.random.Generator:
        """Draws of a part of its own."""
        return np.random.Generator(np.random.PCG64([self.seed, *name.encode()]))


def ended(child: Child) -> tuple[int | None, str]:
    """Exit status and output; None for a launch that had to be killed."""
    status = child.wait(LONGEST_S)
    if status is None:
        child.kill()
        child.wait(60)
    return status, child.log.read_text(errors="replace")


def wrong_ending(status: int | None, text: str) -> str:
    """What is never allowed, whatever was done; "" if it did not happen."""
    if status is None:
        return f"hung for {LONGEST_S} s"
    if "Traceback (most recent call last)" in text:
        return f"a traceback, status {status}: {text[-600:]}"
    if status not in (0, 2):
        return f"status {status}: {text[-600:]}"
    return "no message" if status and not text.strip() else ""


def ppo_words(siege: Siege, fault: str, workers: bool) -> list[str]:
    """PPO alone, on an environment that goes wrong in this way."""
    env = f"{{env_type: 'faulty_env:Faulty', max_actions_per_traj: 9, env_config: {{fault: '{fault}'}}}}"
    more = ["es_manager.env_workers=2", "es_manager.env_timeout_s=2"] if workers else ["es_manager.env_timeout_s=1"]
    tags = [f"es_manager.{split}.env_configs={{tags: [Siege], n_groups: null}}" for split in ("train", "val")]
    return [
        "ppo", "base", *STAGE_WORDS, f"+custom_envs.Siege={env}", *tags, *more, f"model_path={siege.model}",
        f"trainer.run_dir={RUN}",
    ]  # fmt: skip


def trained(folder: Path) -> dict[str, str]:
    """What must be equal where the environment's options are not: all but identities and checksums of checkpoints."""
    return {name: value for name, value in result(folder).items() if not name.endswith("state.json")}


def lost_episodes(folder: Path) -> list[dict[str, str]]:
    """What the record of a run says was lost, as lines of `lost.jsonl`."""
    lines = (line for path in sorted((folder / RUN).glob("ppo/trajectories/*.jsonl")) for line in path.open())
    rows = [json.loads(line) for line in lines]
    return [
        {"episode_id": row["episode_id"], "reason": row["error"], "call": "reset" if "reset" in row["error"] else ""}
        for row in rows
        if row["stop"] == "error"
    ]


def environments(siege: Siege, faults: Sequence[str]) -> None:
    """Each fault, in this process or in one of its own, against a run that is told which episodes it loses."""
    for fault in faults:
        words = ppo_words(siege, fault, fault in IN_WORKERS)
        there = siege.folder / "environments" / fault
        status, text = ended(launch(there, words))
        problem = wrong_ending(status, text)
        lost = [] if problem else lost_episodes(there)
        if not problem and status == 0:
            declared = siege.folder / "environments" / f"{fault}-declared"
            marks = declared / RUN / "ppo" / "lost.jsonl"
            marks.parent.mkdir(parents=True)
            marks.write_text("".join(json.dumps(row) + "\n" for row in lost))
            other, said = ended(launch(declared, ppo_words(siege, "", fault in IN_WORKERS)))
            changed = (
                differences(trained(there), trained(declared)) if other == 0 else [f"status {other} {said[-300:]}"]
            )
            problem = f"{len(lost)} lost, differs from the run with these declared: {changed[:4]}" if changed else ""
            if lost and str(len(lost)) not in text:
                problem = f"the last message does not count {len(lost)} lost episodes"
        siege.judge("environments", fault, f"ended, {len(lost)} lost" if status == 0 else "refused", problem)


def mutated(rng: np.random.Generator, keys: Sequence[str], values: Sequence[str]) -> tuple[str, list[str]]:
    """A YAML file and overrides that a person, a script or nobody might write."""

    def value(depth: int) -> str:
        kind = int(rng.integers(0, 8 if depth < 6 else 5))
        if kind < 4:
            return str(rng.choice(values))
        if kind == 4:
            return "${" + str(rng.choice(keys)) + "}"
        if kind == 5:
            return "[" + ", ".join(value(depth + 1) for _ in range(rng.integers(0, 4))) + "]"
        if kind == 6:
            return "{" + ", ".join(f"k{n}: {value(depth + 1)}" for n in range(rng.integers(0, 3))) + "}"
        return f"&a{rng.integers(0, 3)} {value(depth + 1)}" if rng.random() < 0.5 else f"*a{rng.integers(0, 3)}"

    lines, overrides = [], []
    for _ in range(rng.integers(0, 4)):
        parts, indent = str(rng.choice(keys)).split("."), 0
        for part in parts[:-1]:
            lines.append(" " * indent + part + ":")
            indent += 2
        lines.append(" " * indent + f"{parts[-1]}: {value(0)}")
    for _ in range(rng.integers(0, 3)):
        sign = rng.choice(["", "", "+", "++", "~"])
        overrides.append(f"{sign}{rng.choice(keys)}={value(0)}")
    text = "\n".join(lines)
    if rng.random() < 0.1 and text:  # torn, or with a byte that does not belong there
        cut = int(rng.integers(0, len(text)))
        text = text[:cut] + str(rng.choice(["\x00", "\t", "\ud800".encode("utf-8", "replace").decode(), "'", ""]))
    return text, overrides


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in what takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def config(siege: Siege, cases: int) -> None:
    """Configurations by a grammar: each loads, or is refused in one message."""
    from spa.config.convert import schema_keys
    from spa.config.load import load_config
    from spa.errors import SpaError

    rng = siege.rng("config")
    keys = [path.replace("*", "FrozenLakeNoSlip") for path, _, _ in schema_keys()]
    keys += ["defaults", "nobody.knows", "trainer", "es_manager.train", "custom_envs", "a.b.c.d.e"]
    values = ["0", "-1", "1", "3", "1e308", "9223372036854775807", "1e-400", ".nan", ".inf", "null", "true", "''", "auto",
              "'${oc.env:HOME}'", "'\\0'", "é", "FrozenLake", "[1,2]", "../..", "/dev/full", "-5", "0x10", "1_000", "2020-01-01",
              "!!python/none x", "'${'", "'}'", "\"a b\""]  # fmt: skip
    place = siege.folder / "mine.yaml"
    for number in range(cases):
        text, overrides = mutated(rng, keys, values)
        place.write_text(text)
        name, outcome, problem = f"case {number} (seed {siege.seed})", "loaded", ""
        try:
            with within(20):
                load_config(place if rng.random() < 0.7 else "base", overrides)
        except SpaError as error:
            outcome = "refused in one message"
            problem = "" if 0 < len(str(error)) < 6000 else f"a message of {len(str(error))} characters"
        except BaseException as error:  # noqa: BLE001 - that there is no other is what is tested
            problem = f"{type(error).__name__}: {str(error)[:200]} from {text!r} {overrides!r}"
        siege.judge("config", name, outcome, problem)


def harm(path: Path, how: str, rng: np.random.Generator) -> None:
    """Truncate, change a bit of, or delete a file."""
    data = bytearray(path.read_bytes())
    if how == "delete":
        path.unlink()
    elif how == "truncate":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[int(rng.integers(0, len(data)))] ^= 1 << int(rng.integers(0, 7))
        path.write_bytes(data)


def damage(siege: Siege, limit: int) -> None:
    """Every file of a finished run, in every way, or `limit` of these cases by chance; then the same command again."""
    words = ["run", "base", *RUN_WORDS, f"model_path={siege.model}", f"trainer.run_dir={RUN}"]
    whole = siege.folder / "damage" / "whole"
    status, text = ended(launch(whole, words))
    if status != 0:
        siege.judge("damage", "undisturbed", "", wrong_ending(status, text) or text[-600:])
        return
    expected, rng = result(whole), siege.rng("damage")
    names = sorted(
        str(path.relative_to(whole)) for path in (whole / RUN).rglob("*") if path.is_file() and path.stat().st_size
    )
    kept = [name for name in names if not any(part in FOR_PEOPLE for part in Path(name).parts)]
    cases = [(name, how) for name in kept for how in ("truncate", "flip", "delete")]
    chosen = cases if limit >= len(cases) else [cases[i] for i in sorted(rng.choice(len(cases), limit, replace=False))]
    for name, how in chosen:
        there = siege.folder / "damage" / "harmed"
        shutil.rmtree(there, ignore_errors=True)
        shutil.copytree(whole, there)
        harm(there / name, how, rng)
        status, text = ended(launch(there, words))
        problem = wrong_ending(status, text)
        if not problem and status == 0:
            changed = still_harmed(there, name, expected)
            problem = f"exit status 0, and it differs: {changed[:4]}" if changed else ""
        siege.judge("damage", f"{how} {name}", "as undisturbed" if status == 0 else "refused in one message", problem)


def still_harmed(there: Path, name: str, expected: dict[str, str]) -> list[str]:
    """What a run that ended well has different from the undisturbed one. A checkpoint before the newest, which nothing
    goes on from, may be harmed as long as it is known to be."""
    older = next((part for part in Path(name).parents if part.name.startswith("global_step_")), None)
    if older is not None and (there / older) != newest_in((there / older).parent):
        if found_damage(there / older) is None:
            return [f"{older} is harmed, and taken for whole"]
        shutil.rmtree(there / older)
        inside = f"{older.relative_to(RUN)}/"
        expected = {key: value for key, value in expected.items() if not key.startswith(inside)}
    try:
        return differences(expected, result(there))
    except (AssertionError, ValueError, OSError) as error:
        return [str(error)]


def newest_in(folder: Path) -> Path:
    """The newest checkpoint of a stage."""
    return max(folder.glob("global_step_*"), key=step_of)


def processes(siege: Siege, suspensions: int) -> None:
    """A run that is suspended for longer than it may stand still, and one that is started twice."""
    words = [
        "run",
        "base",
        *RUN_WORDS,
        f"model_path={siege.model}",
        f"trainer.run_dir={RUN}",
        "trainer.stall_timeout_s=10",
    ]
    whole = siege.folder / "processes" / "whole"
    ended(launch(whole, words))
    expected, rng = result(whole), siege.rng("processes")
    there = siege.folder / "processes" / "suspended"
    child = launch(there, words)
    for _ in range(suspensions):
        if child.wait(float(rng.uniform(1, 4))) is not None:
            break
        child.kill(signal.SIGSTOP)
        time.sleep(12)
        child.kill(signal.SIGCONT)
        siege.count("processes", "suspended for 12 s of allowed 10 s")
    status, text = ended(launch(there, words)) if child_is_gone(child) else ended(child)
    changed = differences(expected, result(there)) if status == 0 else []
    problem = wrong_ending(status, text) or (f"differs: {changed[:4]}" if changed or status else "")
    siege.judge("processes", "suspended", "as undisturbed", problem)
    there = siege.folder / "processes" / "twice"
    first = launch(there, words)
    first.wait(LONGEST_S, until=lambda: any((there / RUN).rglob("config.yaml")))
    first.kill(signal.SIGSTOP)  # so that it cannot end before the second looks
    status, text = ended(launch(there, words))  # writes to the same output, over that of the first
    first.kill(signal.SIGCONT)
    problem = wrong_ending(status, text) or ("" if status == 2 else f"the second ended with status {status}")
    siege.judge("processes", "second of two", "refused in one message", problem)
    status, text = ended(first)
    changed = differences(expected, result(there)) if status == 0 else [f"status {status}"]
    siege.judge("processes", "first of two", "as undisturbed", f"differs: {changed[:4]}" if changed else "")


def child_is_gone(child: Child) -> bool:
    """Whether a launch has ended and was waited for."""
    try:
        os.kill(child.pid, 0)
    except ProcessLookupError:
        return True
    return False


def servers(siege: Siege) -> None:
    """API servers that misbehave, on a loopback server: the tests of the engines."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", str(TESTS / "engines" / "test_api.py"),
               str(TESTS / "engines" / "test_api_evaluation.py")]  # fmt: skip
    found = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False, timeout=900)
    for line in found.stdout.splitlines():
        if line.startswith(("PASSED", "FAILED", "ERROR")):
            siege.judge("servers", line, "held", "" if line.startswith("PASSED") else line)


PARTS: dict[str, Callable[[Siege, argparse.Namespace], None]] = {
    "config": lambda siege, args: config(siege, args.cases),
    "environments": lambda siege, args: environments(siege, args.faults),
    "damage": lambda siege, args: damage(siege, args.files),
    "processes": lambda siege, args: processes(siege, args.suspensions),
    "servers": lambda siege, args: servers(siege),
}


def main() -> int:
    """Every part; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--cases", type=int, default=2000, help="configurations")
    parser.add_argument("--faults", nargs="*", default=[*IN_PROCESS, *IN_WORKERS], help="of environments")
    parser.add_argument("--files", type=int, default=60, help="cases of damage")
    parser.add_argument("--suspensions", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/siege"))
    args = parser.parse_args()
    root = args.folder.resolve()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(TESTS / "envs"), os.environ.get("PYTHONPATH", "")])
    import spa.recipes.pipeline  # noqa: F401 - imported once for all launches

    siege, started = Siege(root, args.seed), time.monotonic()
    for part in args.only:
        PARTS[part](siege, args)
    (root / "report.json").write_text(
        json.dumps({"seed": args.seed, "counts": siege.counts, "broken": siege.broken}, indent=1)
    )
    lines = [f"{part}: {number} {outcome}" for part, found in siege.counts.items() for outcome, number in found.items()]
    verdict = f"{len(siege.broken)} cases BROKE the invariant" if siege.broken else "Every case kept the invariant"
    sys.stdout.write(
        "\n".join([*lines, *siege.broken, f"{verdict} (seed {args.seed}, {time.monotonic() - started:.0f} s).", ""])
    )
    return 1 if siege.broken else 0


if __name__ == "__main__":
    raise SystemExit(main())

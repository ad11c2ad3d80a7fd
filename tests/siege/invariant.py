"""What the parts of a siege have in common: launches, counts, and what is never allowed to happen."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "envs"), str(TESTS / "chaos"), str(TESTS / "siege")]

from chaos import RUN, Child, differences, is_finished, launch, result  # noqa: E402 - found through the path above
from helpers.runs import SMALL, make_base  # noqa: E402

__all__ = ["RUN", "TESTS", "Child", "differences", "is_finished", "launch", "result"]

LONGEST_S = 300
STAGE_WORDS = (*SMALL, "trainer.total_training_steps=2", "trainer.save_freq=1", "trainer.threads=1")
RUN_WORDS = (
    *STAGE_WORDS, "generate.num_batches=1", "sft.trainer.total_training_steps=2", "sft.trainer.eval_episodes=2",
    "gate.enable=true", "gate.prediction_exact_min=0", "gate.format_min=0", "gate.observation_exact_min=0",
    "gate.changed_f1_min=0", "gate.entropy_min=0",
)  # fmt: skip


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


def moving_clock(file: Path) -> Callable[[], None]:
    """For `launch`: the time of day is off by the seconds that stand in `file`, whenever it is asked for."""

    def before() -> None:
        real = time.time

        def now() -> float:
            return real() + (float(file.read_text() or 0) if file.exists() else 0.0)

        time.time, time.time_ns = now, lambda: int(now() * 1e9)

    return before


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


def declare(folder: Path, lost: Sequence[dict[str, str]]) -> None:
    """Say that these episodes of a PPO run are lost, before it begins."""
    marks = folder / RUN / "ppo" / "lost.jsonl"
    marks.parent.mkdir(parents=True)
    marks.write_text("".join(json.dumps(row) + "\n" for row in lost))


NAMED = ("state.json", "chat_template.jinja")
"""Files of a checkpoint that say what it was made with: the options of the environment, the chat template."""


def trained(folder: Path) -> dict[str, str]:
    """What must be equal where options that bring about faults are not: all but what names them."""
    return {name: value for name, value in result(folder).items() if not name.endswith(NAMED)}


ENGINE = ("logprobs", "rollout/is_", "rollout/mismatch_kl", "rollout/logprob_gap_max")
"""What is said of the engine's log-probs: in episodes, and in metrics. Nothing is trained on them but by request."""
LAST_DIGITS = 2e-6


def unlike(one: Path, other: Path, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of the files with these names, which differ in two runs: those that differ in more than rounding, and those that
    do not."""
    rounded = [name for name in names if differs_by_rounding(one / RUN / name, other / RUN / name)]
    return [name for name in names if name not in rounded], rounded


def differs_by_rounding(one: Path, other: Path) -> bool:
    """Whether two records differ only in the last digits of what the engine says of its own tokens, in steps that lost
    an episode: until it was lost the others shared a batch with it, and matrix products round by their shape."""
    if one.suffix != ".jsonl" or not (one.is_file() and other.is_file()):
        return False
    mine, theirs = (
        [json.loads(line) for line in path.read_text().splitlines()] for path in (one, other)
    )
    if len(mine) != len(theirs) or one.read_bytes()[-1:] != other.read_bytes()[-1:]:
        return False
    # a file of episodes is one step; of metrics, a line
    lost = any(row.get("stop") == "error" for row in theirs)
    return all(alike(a, b, rounded=lost or lost_some(b)) for a, b in zip(mine, theirs, strict=True))


def lost_some(line: dict[str, Any]) -> bool:
    """Whether a line of metrics counts lost episodes."""
    return any(value for key, value in line.items() if key.endswith("/errors"))


def alike(mine: dict[str, Any], theirs: dict[str, Any], *, rounded: bool) -> bool:
    """Whether two lines are equal, but for rounding of ENGINE's values if it may have been `rounded` differently."""
    return mine.keys() == theirs.keys() and all(
        value == theirs[key] or (rounded and key.startswith(ENGINE) and close(value, theirs[key]))
        for key, value in mine.items()
    )


def close(mine: Any, theirs: Any) -> bool:
    """Whether numbers, or lists of as many numbers, are equal but for the last digits."""
    if np.shape(mine) != np.shape(theirs):
        return False
    return np.allclose(
        np.asarray(mine, float), np.asarray(theirs, float), rtol=LAST_DIGITS, atol=LAST_DIGITS
    )


def lost_episodes(folder: Path) -> list[dict[str, str]]:
    """What the record of a run says was lost, as lines of `lost.jsonl`."""
    lines = (
        line
        for path in sorted((folder / RUN).glob("ppo/trajectories/*.jsonl"))
        for line in path.open()
    )
    rows = [json.loads(line) for line in lines]
    return [
        {
            "episode_id": row["episode_id"],
            "reason": row["error"],
            "call": "reset" if "reset" in row["error"] else "",
        }
        for row in rows
        if row["stop"] == "error"
    ]


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


def run_words(siege: Siege, *more: str) -> list[str]:
    """All three stages, in seconds."""
    return ["run", "base", *RUN_WORDS, f"model_path={siege.model}", f"trainer.run_dir={RUN}", *more]

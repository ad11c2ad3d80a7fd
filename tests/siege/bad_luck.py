"""Bad luck: damaged files, suspension, two processes in one folder, clocks that jump."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from invariant import (
    LONGEST_S,
    RUN,
    Child,
    Siege,
    differences,
    ended,
    is_finished,
    launch,
    moving_clock,
    result,
    run_words,
    wrong_ending,
)

from spa.run.checkpoint import damage as found_damage
from spa.run.checkpoint import step_of

HOWS = ("truncate", "delete")
AT_A_TIME = 2
FOR_PEOPLE = (
    "log.txt", "timings.jsonl", "metrics.jsonl", "summary.json", "rounds.json", "config.yaml", "trajectories",
    "token_scores", "previous",
)  # fmt: skip
"""Parts of a run that no stage resumes from: they are not made again, and nothing is trained on them."""


def harm(path: Path, how: str) -> None:
    """Truncate or delete a file."""
    data = path.read_bytes()
    if how == "delete":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2])


def stopped_at(folder: Path, stage: str) -> Callable[[], bool]:
    """For `Child.wait`: whether a run has come as far as the middle of a stage."""
    sign = "data/metrics.jsonl" if stage == "data" else f"{stage}/global_step_1/complete.json"
    return lambda: (folder / RUN / sign).exists()


def snapshots(siege: Siege, whole: Path) -> dict[str, Path]:
    """A finished run, and one that was killed in the middle of each stage."""
    found = {"whole": whole}
    for stage in ("data", "sft", "ppo"):
        there = siege.folder / "damage" / f"killed-in-{stage}"
        child = launch(there, run_words(siege))
        if child.wait(LONGEST_S, until=stopped_at(there, stage)) is None:
            child.kill()
            child.wait(60)
        found[stage] = there
    return found


def damage(siege: Siege, limit: int) -> None:
    """Files of a run that is finished or was killed in one of its stages, harmed; then the same command again.

    Every kind of file of every such moment is harmed once, in one way drawn; up to `limit` cases the other files and
    ways follow by chance.
    """
    whole = siege.folder / "damage" / "whole"
    status, text = ended(launch(whole, run_words(siege)))
    if status != 0:
        siege.judge("damage", "undisturbed", "", wrong_ending(status, text) or text[-600:])
        return
    expected, rng = result(whole), siege.rng("damage")
    moments = snapshots(siege, whole)
    cases = [
        (moment, name, how)
        for moment, there in moments.items()
        for name in kept_files(there, moment)
        for how in HOWS
    ]
    cases = [cases[i] for i in rng.permutation(len(cases))]
    kinds = {(moment, kind_of(name)): (moment, name, how) for moment, name, how in cases}
    others = [case for case in cases if case not in kinds.values()]
    chosen = [*kinds.values(), *others][:limit]
    siege.counts["damage"] = {f"kinds of files at {len(moments)} moments": len(kinds)}
    for pair in (chosen[at : at + AT_A_TIME] for at in range(0, len(chosen), AT_A_TIME)):
        started = [
            (case, harmed(siege, number, moments[case[0]], case))
            for number, case in enumerate(pair)
        ]
        for (moment, name, how), child in started:
            there = child.log.parent
            status, text = ended(child)
            problem = wrong_ending(status, text)
            if not problem and status == 0:
                changed = still_harmed(there, name, expected)
                problem = f"exit status 0, and it differs: {changed[:4]}" if changed else ""
            outcome = "as undisturbed" if status == 0 else "refused in one message"
            siege.judge("damage", f"{how} {name} ({moment})", outcome, problem)


def harmed(siege: Siege, number: int, source: Path, case: tuple[str, str, str]) -> Child:
    """A copy of a run with one file harmed, started again."""
    there = siege.folder / "damage" / f"harmed-{number}"
    shutil.rmtree(there, ignore_errors=True)
    shutil.copytree(source, there)
    harm(there / case[1], case[2])
    return launch(there, run_words(siege))


def kept_files(folder: Path, moment: str) -> list[str]:
    """The files of a run that it goes on from, or that something is said about; episodes while data are made of them."""
    paths = sorted(
        path for path in (folder / RUN).rglob("*") if path.is_file() and path.stat().st_size
    )
    names = [path.relative_to(folder) for path in paths]
    unmade = moment == "data" and not is_finished(folder / RUN / "data")
    apart = set(FOR_PEOPLE) - ({"trajectories"} if unmade else set())
    return [str(name) for name in names if not apart.intersection(name.parts)]


def kind_of(name: str) -> str:
    """A file's name without numbers: what was made the same way."""
    return re.sub(r"\d+", "N", name)


def still_harmed(there: Path, name: str, expected: dict[str, str]) -> list[str]:
    """What a run that ended well has different from the undisturbed one. A checkpoint before the newest, which nothing
    goes on from, may be harmed as long as it is known to be."""
    older = next(
        (there / part for part in Path(name).parents if part.name.startswith("global_step_")), None
    )
    if older is not None and older != newest_in(older.parent) and found_damage(older) is not None:
        shutil.rmtree(older)
        inside = f"{older.relative_to(there / RUN)}/"
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
    words = run_words(siege, "trainer.stall_timeout_s=10")
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
    status, text = ended(launch(there, words, output="second.txt"))
    first.kill(signal.SIGCONT)
    problem = wrong_ending(status, text) or (
        "" if status == 2 else f"the second ended with status {status}"
    )
    siege.judge("processes", "second of two", "refused in one message", problem)
    status, text = ended(first)
    changed = differences(expected, result(there)) if status == 0 else [f"status {status}"]
    siege.judge(
        "processes", "first of two", "as undisturbed", f"differs: {changed[:4]}" if changed else ""
    )


def child_is_gone(child: Child) -> bool:
    """Whether a launch has ended and was waited for."""
    try:
        os.kill(child.pid, 0)
    except ProcessLookupError:
        return True
    return False


def clocks(siege: Siege) -> None:
    """Clocks that jump by decades while a run goes on, and files whose times are wrong when it is started again."""
    words = run_words(siege, "trainer.stall_timeout_s=60")
    whole, there = (siege.folder / "clocks" / name for name in ("whole", "jumping"))
    ended(launch(whole, words))
    rng, clock = siege.rng("clocks"), there / "clock"
    there.mkdir(parents=True)
    for stage in ("data", "sft", "ppo", ""):
        child = launch(there, words, before=moving_clock(clock))
        reached = stopped_at(there, stage) if stage else lambda: False
        while (status := child.wait(0.1, until=reached)) is None and not reached():
            clock.write_text(str(rng.integers(-(2**31), 2**31)))
            siege.count("clocks", "jumps of the time of day")
        if status is None:
            child.kill()
            child.wait(60)
        for path in (path for path in (there / RUN).rglob("*") if path.is_file()):
            moment = int(rng.integers(0, 2**32))
            os.utime(path, (moment, moment))
    text = child.log.read_text(errors="replace")
    changed = differences(result(whole), result(there)) if status == 0 else [f"status {status}"]
    problem = wrong_ending(status, text) or (f"differs: {changed[:4]}" if changed else "")
    siege.judge("clocks", "run", "as undisturbed", problem)
    siege.judge("clocks", "durations", "none is negative", negative_durations(there / RUN))
    for words in (["runs", "."], ["report", RUN]):
        status, text = ended(launch(there, words, before=moving_clock(clock), output="looked.txt"))
        siege.judge(
            "clocks",
            words[0],
            "looked at",
            wrong_ending(status, text) or ("" if status == 0 else text[-300:]),
        )


def negative_durations(run: Path) -> str:
    """What is wrong with the times that a run has noted."""
    for path in run.rglob("timings.jsonl"):
        for line in path.read_text().splitlines():
            values = {
                key: value
                for key, value in json.loads(line).items()
                if key not in ("step", "unix_time")
            }
            wrong = {key: value for key, value in values.items() if not 0 <= value < 1e9}
            if wrong:
                return f"{path.relative_to(run)}: {wrong}"
    for path in run.rglob("manifest.json"):
        if not 0 <= json.loads(path.read_text())["seconds"] < 1e6:
            return f"{path.relative_to(run)}: {path.read_text()}"
    return ""

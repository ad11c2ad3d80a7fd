"""The progress of each method of a run, and the current work of a running command."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from spa.run.console import printable
from spa.run.estimate import PLAN, Work, time_left
from spa.run.files import MANIFEST, read_object
from spa.run.live import StageProgress
from spa.run.lock import LOCK, held
from spa.run.progress import clock
from spa_report.reading import RunFolder, StageFolder, flatten, is_stage, stage_rank

# A slow run may log a line only every few minutes, but a gap of 15 minutes is rare.
_FRESH_SECONDS = 15 * 60


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a method. `stage` is its latest stage, `step` the last recorded step of that
    stage, and `total` its number of steps, or None if the configuration does not set it."""

    arm: str
    stage: str
    step: int
    total: int | None
    finished: bool

    @property
    def steps(self) -> str:
        """The step as text: `2 of 36`, or just `2` if the total is unknown."""
        return f"{self.step}" if self.total is None else f"{self.step} of {self.total}"


def progress(run: RunFolder) -> list[Progress]:
    """Return the progress of each method's least advanced seed, starting with the least advanced
    method."""
    by_method: dict[str, list[tuple[tuple[bool, float, int, int], Progress]]] = {}
    # A dict, because it is an ordered set of (method, seed).
    for arm, seed in {(stage.arm, stage.seed): None for stage in run.stages}:
        last = max(
            (stage for stage in run.stages if (stage.arm, stage.seed) == (arm, seed)),
            key=stage_rank,
        )
        state = _progress(last, run)
        # This key puts unfinished stages first, then sorts by round, stage and step.
        by_method.setdefault(arm, []).append(
            ((state.finished, *stage_rank(last), state.step), state)
        )
    least = sorted(
        (min(states, key=lambda pair: pair[0]) for states in by_method.values()),
        key=lambda pair: pair[0],
    )
    return [state for _, state in least]


def unfinished(run: RunFolder) -> list[Progress]:
    """The progress of each method that has not finished all seeds."""
    return [state for state in progress(run) if not state.finished]


def lacks_summary(run: RunFolder) -> bool:
    """Return whether a comparison still lacks its summary, which is written after its last
    method."""
    # The lock file of a comparison remains after its process ends. Without one, no comparison ran
    # here, so no summary is expected.
    return (
        run.summary is None
        and (run.path / LOCK).is_file()
        and any(stage.arm for stage in run.stages)
    )


def failures(run: RunFolder) -> list[str]:
    """Failures of the latest command of a comparison, one text per failed stage."""
    failed = read_object(run.path / PLAN).get("failed")
    return (
        [each for each in failed if isinstance(each, str) and each]
        if isinstance(failed, list)
        else []
    )


def in_progress(run: RunFolder) -> bool:
    """Return whether some method, or the comparison as a whole, has not finished."""
    return lacks_summary(run) or bool(unfinished(run))


def _progress(stage: StageFolder, run: RunFolder) -> Progress:
    total = (
        flatten(stage.config).get("trainer.total_training_steps") if stage.name == "ppo" else None
    )
    total = total if isinstance(total, int) else None
    result = re.search(r"global_step_(\d+)", stage.result or "")
    step = max(int(result[1]) if result else 0, max(stage.metrics, default=0))
    # The file exists only after the evaluation has ended.
    evaluated = stage.evaluation.is_file()
    # A command that runs all stages locks the run's folder, so the method is finished only after
    # PPO. A stage that is run alone locks only its own folder.
    alone = is_stage(run.path) or not (run.path / LOCK).is_file()
    finished = stage.name == "eval" or evaluated or (alone and stage.result is not None)
    if stage.name == "ppo":
        damaged = (stage.path / MANIFEST).is_file() and not stage.manifest
        finished = stage.result is not None if total is None else step >= total and not damaged
    return Progress(stage.arm, stage.name, step, total, finished)


def shown_step(steps: Sequence[int | None]) -> str:
    """Name the steps of the results while methods are unfinished: `at step 4 and 6`, or `so far` if
    no step is known."""
    known = sorted({step for step in steps if step is not None})
    return f"at step {' and '.join(map(str, known))}" if known else "so far"


def is_running(run: RunFolder, now: float) -> bool:
    """Return whether a process holds the lock of the run or of one of its stages.

    For a run on another machine or without locks, this cannot be known. Then return whether metrics
    were logged in the last 15 minutes. Times in the future come from a wrong clock and are ignored.
    """
    folders = (run.path, *(stage.path for stage in run.stages))
    known = [held(folder) for folder in folders if (folder / LOCK).is_file()]
    # `held` returns None if another machine may hold the lock.
    if True in known:
        return True
    times = [
        row["unix_time"]
        for stage in run.stages
        for row in stage.timings.values()
        if "unix_time" in row
    ]
    return (None in known or not known) and any(0 <= now - time < _FRESH_SECONDS for time in times)


@dataclass(frozen=True, slots=True)
class LiveStage:
    """The current work of a method, as text: its current stage, the progress and remaining time of
    that stage, the stages that follow, and the memory of its process."""

    arm: str
    stage: str
    steps: str
    left: str
    later: str
    memory: str


@dataclass(frozen=True, slots=True)
class Live:
    """The current work of a running command: its remaining time, the load of the machine, and the
    work of each method."""

    left: str
    load: str
    stages: tuple[LiveStage, ...]


def live(run: RunFolder, now: float) -> Live | None:
    """Return the current work of the command that runs in `run`, or None if no command is running
    or it wrote no plan file. `now` is in seconds since the epoch."""
    plan = read_object(run.path / PLAN)
    try:
        workers = int(plan["workers"])
        methods = {
            str(arm): [
                (
                    str(stage["name"]),
                    run.path / stage["folder"],
                    None if stage["expected"] is None else float(stage["expected"]),
                )
                for stage in stages
            ]
            for arm, stages in plan["methods"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):  # the plan is missing or damaged
        return None
    if not is_running(run, now):
        return None
    known = {stage.path.resolve(): stage for stage in run.stages}
    works: list[list[Work]] = []
    rows = []
    loads = []
    for arm, stages in methods.items():
        own: list[Work] = []
        waiting = []
        for name, folder, expected in stages:
            finished = read_object(folder / MANIFEST).get("result") is not None
            recorded = StageProgress(folder).read()
            at = now if held(folder) else None
            own.append(recorded.work(name, expected, finished=finished, now=at))
            if not finished:
                waiting.append((name, folder, recorded))
        works.append(own)
        if not waiting:
            rows.append(LiveStage(printable(arm), "finished", "", "", "", ""))
            continue
        name, folder, recorded = waiting[0]
        timings = known[folder.resolve()].timings if folder.resolve() in known else {}
        last = timings[max(timings)] if timings else {}
        if "perf/load" in last:
            loads.append((last["unix_time"], last["perf/load"]))
        begun = held(folder) is True
        left = recorded.seconds_left_at(now)
        memory = f"{last['perf/memory_gb']:.1f} GB" if "perf/memory_gb" in last else ""
        rows.append(
            LiveStage(
                printable(arm),
                printable(name),
                recorded.steps.replace("/", " of ") if recorded.step else "",
                ("starting" if begun else "waiting") if left is None else clock(left),
                ", ".join(printable(other) for other, *_ in waiting[1:]),
                memory,
            )
        )
    left = time_left(works, workers=workers)
    load = f"load {max(loads)[1]:.1f} on {os.cpu_count()} cores" if loads else ""
    return Live("" if left is None else f"{left} left in all", load, tuple(rows))

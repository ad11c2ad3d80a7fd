"""`spa runs`: list the runs of a folder with their progress and results."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spa.errors import DataError, NoRunError
from spa.run.console import printable
from spa.run.lock import held
from spa.run.progress import clock
from spa_report.curves import PASS_1, RunArm, ends
from spa_report.progress import (
    failures,
    in_progress,
    is_running,
    lacks_summary,
    live,
    progress,
    shown_step,
)
from spa_report.reading import (
    RunFolder,
    StageFolder,
    flatten,
    is_run,
    open_run,
    problem_text,
)
from spa_report.results import MethodResult, current_summary, judged_steps, list_methods, measured

Steps = dict[str, int | None]
"""Maps the label of a method to the step whose validation is its result."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run in the table. `state` describes the run's least advanced method. `result` is the
    Pass@1 before and after PPO, as text."""

    name: str
    state: str
    result: str
    seeds: str
    duration: str
    methods: tuple[MethodResult, ...] = ()
    commit: str = ""
    left: str = ""
    """Estimated remaining time of a running command. Empty if unknown."""


def list_runs(folder: Path, now: float) -> Iterator[RunRow]:
    """Yield one row per run in `folder`, sorted by name, or a single row if `folder` is itself a
    run. `now` is in seconds since the epoch."""
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a directory. Give the folder of the runs, for example runs."
        )
    paths = [folder.resolve()] if is_run(folder) else sorted(folder.iterdir())
    yield from (line for path in paths if (line := run_row(path, now)))


def run_row(path: Path, now: float) -> RunRow | None:
    """The row of one run, or None if the folder contains no run."""
    try:
        if not path.is_dir() or path.name.startswith("."):
            return None
        run = open_run(path)
        methods = list_methods([run])
        steps = judged_steps(methods, {run.name: current_summary(run)})
        lines = tuple(_methods(run, methods, steps, now))
        commit = flatten(run.summary or {}).get("versions.commit") or next(
            (text for stage in run.stages if (text := stage.manifest.get("commit"))), ""
        )
        plan = live(run, now)
        name, state, result, seeds, duration = map(
            printable,
            (
                run.name,
                _state(run, now),
                _result(run, methods, steps),
                _seeds(run),
                _duration(run),
            ),
        )
        left = plan.left if plan else ""
        return RunRow(name, state, result, seeds, duration, lines, printable(str(commit)), left)
    except NoRunError:
        return None
    except Exception as error:  # noqa: BLE001 - a file may contain anything, and the other runs must be listed
        return RunRow(
            printable(path.name), "unreadable", printable(problem_text(error))[:120], "", ""
        )


def _seconds(stages: Sequence[StageFolder]) -> float:
    """Total duration of the steps of these stages, in seconds."""
    return sum(row.get("elapsed_s", 0) for stage in stages for row in stage.timings.values())


def _state(run: RunFolder, now: float) -> str:
    """Describe the run: finished, running or stopped, and the progress of its least advanced
    method."""
    methods = progress(run)
    if not methods or not (in_progress(run) or held(run.path)):
        return "finished"
    state = "running" if is_running(run, now) else "stopped"
    least = methods[0]
    if failed := failures(run):
        return f"{state}: failed: {failed[0].splitlines()[0]}"
    if least.finished and lacks_summary(run):
        return f"{state}: all stages are finished, but summary.json is missing"
    return f"{state}: {least.arm + ' ' if least.arm else ''}{least.stage} step {least.steps}"


def _methods(
    run: RunFolder, methods: Sequence[RunArm], steps: Steps, now: float
) -> Iterator[MethodResult]:
    states = {state.arm: state for state in progress(run)}
    for method in methods:
        state = states.get(method.arm)
        text = "finished"
        if state and not state.finished:
            text = f"{'running' if is_running(run, now) else 'stopped'}: {state.stage} step {state.steps}"
        yield replace(measured(method, steps[method.label]), state=printable(text))


def _result(run: RunFolder, methods: Sequence[RunArm], steps: Steps) -> str:
    """Describe each method's Pass@1 before and after PPO. While a method is in progress, the text
    names the step of the results."""
    parts = []
    judged = False
    for method in methods:
        before, after = ends(PASS_1, method, steps[method.label])
        name = f"{method.arm} " if method.arm else ""
        judged |= after is not None
        if after is not None:
            start = "" if before is None else f"{100 * before:.0f} → "
            parts.append(f"{name}{start}{100 * after:.0f} %")
        elif before is not None:
            parts.append(f"{name}{100 * before:.0f} % before PPO")
    when = f"{shown_step([*steps.values()])}: " if judged and in_progress(run) else ""
    return when + ", ".join(parts) or "–"


def _seeds(run: RunFolder) -> str:
    summary: dict[str, Any] = run.summary or {}
    seeds = {entry.get("seed") for entry in summary.get("seeds", ())}
    seeds = seeds or {stage.seed for stage in run.stages} - {None}
    # A comparison without seed folders has a single training run per method, whose seed is 0.
    seeds = seeds or ({0} if "methods" in summary else set[int]())
    return ", ".join(sorted(map(str, seeds))) or "–"


def _duration(run: RunFolder) -> str:
    """The duration of the run, or "–" if it is unknown.

    It is the recorded total, or the time of the longest training run (one method and seed) if that
    is longer.
    """
    arms = defaultdict[tuple[str, int | None], list[StageFolder]](list)
    for stage in run.stages:
        arms[stage.arm, stage.seed].append(stage)
    # The recorded total omits sessions that were killed.
    recorded = (run.summary or {}).get("seconds", {}).get("total", 0)
    # Methods and seeds may train in parallel, so the sum of their times may exceed the elapsed
    # time. The longest time is a lower bound.
    total = max([recorded, *map(_seconds, arms.values())])
    return clock(total) if total else "–"

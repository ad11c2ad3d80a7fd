"""Startup message of a command: which stages run, resume or are reused, and the expected time."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from spa.run.estimate import TimeLeft, Work, time_left, write_plan
from spa.run.live import StageProgress


@dataclass(frozen=True)
class StagePlan:
    """A command's plan for one stage: run it (or resume it), or reuse its result.

    `why` is the reason for reuse. `expected` is the estimated duration of the stage from scratch in
    seconds, None if unknown.
    """

    name: str
    folder: Path
    action: Literal["run", "reuse"]
    why: str = "finished with the same settings"
    expected: float | None = None

    @cached_property
    def recorded(self) -> StageProgress:
        """Progress recorded in the stage's folder, read once."""
        return StageProgress(self.folder).read()

    @property
    def work(self) -> Work:
        """This stage's entry in the time estimate (see `spa.run.estimate.Work`)."""
        return self.recorded.work(self.name, self.expected, finished=self.action == "reuse")


def plan_lines(methods: Mapping[str, Sequence[StagePlan]]) -> list[str]:
    """Describe the plan of each method in one line, such as `spa: runs PPO; reuses self-play, SFT
    (finished with the same settings)`."""
    lines = []
    for method, stages in methods.items():
        parts = []
        steps = {stage.name: stage.recorded.step for stage in stages}
        to_run = [stage.name for stage in stages if stage.action == "run"]
        fresh = [name for name in to_run if not steps[name]]
        if fresh:
            parts.append(f"runs {', '.join(fresh)}")
        parts += [f"resumes {name} (step {steps[name]})" for name in to_run if steps[name]]
        reasons = dict.fromkeys(stage.why for stage in stages if stage.action == "reuse")
        for why in reasons:
            reused = [stage.name for stage in stages if (stage.action, stage.why) == ("reuse", why)]
            parts.append(f"reuses {', '.join(reused)} ({why})")
        lines.append(f"{method}: {'; '.join(parts)}")
    return lines


def expected_time(methods: Mapping[str, Sequence[StagePlan]], *, workers: int) -> TimeLeft | None:
    """Estimate the time that the stages of all methods still need, with `workers` of them in
    parallel; None if unknown."""
    return time_left(
        ([stage.work for stage in stages] for stages in methods.values()), workers=workers
    )


def save_plan(root: Path, methods: Mapping[str, Sequence[StagePlan]], *, workers: int) -> None:
    """Write the plan to plan.json in the run's folder `root`, for the viewer."""
    stages = {
        method: [
            {
                "name": stage.name,
                "folder": os.path.relpath(stage.folder, root),
                "expected": stage.expected,
            }
            for stage in own
        ]
        for method, own in methods.items()
    }
    write_plan(root, {"workers": workers, "methods": stages})


def duration(seconds: float) -> str:
    """Format a duration for people: `under a minute`, `about 10 minutes`, `about 2.5 hours`."""
    minutes = seconds / 60
    if minutes < 1:
        return "under a minute"
    if minutes < 90:
        return f"about {minutes:.0f} minute{'s' if round(minutes) > 1 else ''}"
    hours = minutes / 60
    return f"about {hours:.2g} hours" if hours < 10 else f"about {hours:,.0f} hours"

"""Startup message of a command: the stages that run, resume or are reused, and the time."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from spa.run.live import StageProgress


@dataclass(frozen=True)
class StagePlan:
    """A stage before work starts. `action`: it runs, or its result is reused. `why`: the reason why
    it is reused."""

    name: str
    folder: Path
    action: Literal["run", "reuse"]
    why: str = "finished with the same settings"

    @cached_property
    def recorded(self) -> StageProgress:
        """Progress that the stage's folder records, read once."""
        return StageProgress(self.folder).read()


def plan_lines(methods: Mapping[str, Sequence[StagePlan]]) -> list[str]:
    """One line per method: `spa: runs PPO; reuses self-play, SFT (finished with the same settings)`."""
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


def seconds_expected(
    methods: Mapping[str, Sequence[StagePlan]], *, workers: int, measured: Iterable[StagePlan] = ()
) -> float | None:
    """The seconds that the stages to run take, by the timings of finished stages with the same name
    and of their own earlier steps. None if a stage has no such measurement.

    Args:
        methods: The stages of each method, which run one after the other.
        workers: Stages that run at a time.
        measured: Finished stages of other runs.
    """
    known = {}
    for stage in [*measured, *(stage for stages in methods.values() for stage in stages)]:
        if stage.action == "reuse" and stage.recorded.seconds:
            known[stage.name] = stage.recorded.seconds
    totals = []
    for stages in methods.values():
        total = 0.0
        for stage in [stage for stage in stages if stage.action == "run"]:
            # For a stage that has begun, its own steps give the time that is left.
            if stage.recorded.seconds_left is not None:
                total += stage.recorded.seconds_left
            elif stage.name in known:
                total += known[stage.name]
            else:
                return None
        totals.append(total)
    # The stages of a method run in sequence: no number of workers beats the longest method.
    return max([sum(totals) / workers, *totals])


def duration(seconds: float) -> str:
    """A duration for people: `under a minute`, `about 10 minutes`, `about 2.5 hours`."""
    minutes = seconds / 60
    if minutes < 1:
        return "under a minute"
    if minutes < 90:
        return f"about {minutes:.0f} minute{'s' if round(minutes) > 1 else ''}"
    hours = minutes / 60
    return f"about {hours:.2g} hours" if hours < 10 else f"about {hours:,.0f} hours"

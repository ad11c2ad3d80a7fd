"""Estimate the remaining time of a command, and write the command's plan to the folder of its
run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spa.run.files import read_object, write_atomic

PLAN = "plan.json"
UNMEASURED = 2.0
"""Relative uncertainty of an estimate before anything is measured: the range goes from the estimate
divided by this factor to the estimate times the factor."""
MEASURED = 1.25
"""The same factor for an estimate that uses the measured speed of this command's stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Time of one stage in a plan, in seconds.

    `expected` is an estimate for the whole stage, None if unknown. `spent` is the time of its
    recorded steps. `left` is the remaining time extrapolated from them: 0 if the stage is finished,
    None if no step is recorded.
    """

    name: str
    expected: float | None
    spent: float = 0.0
    left: float | None = None


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """A range for the remaining time, from `low` to `high` seconds. It does not include the stages
    `without`, whose time is unknown."""

    low: float
    high: float
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = time_range(self.low, self.high)
        return text + (f", without {', '.join(self.without)} (unknown)" if self.without else "")


def time_left(methods: Iterable[Sequence[Work]], *, workers: int) -> TimeLeft | None:
    """Estimate the time until the last stage ends, from measured speed where available. Return None
    if the time of every remaining stage is unknown.

    Args:
        methods: the stages of each method, which run one after the other.
        workers: number of stages that run at the same time.
    """
    plans = [list(method) for method in methods]
    # Stages that have begun show how fast this machine is compared with the plan: `pace` is
    # measured time divided by planned time.
    begun = [one for plan in plans for one in plan if one.expected and one.spent]
    planned = sum(
        (one.expected or 0.0) * one.spent / (one.spent + (one.left or 0.0)) for one in begun
    )
    pace = sum(one.spent for one in begun) / planned if begun else 1.0
    # For a stage without an estimate, the time of a finished stage of the same name is used.
    same = {one.name: one.spent for plan in plans for one in plan if one.spent and one.left == 0}
    width = MEASURED if begun else UNMEASURED
    lows: list[float] = []
    highs: list[float] = []
    unknown: dict[str, None] = {}
    for plan in plans:
        low = high = 0.0
        for one in plan:
            if one.left is not None:
                seconds, factor = one.left, MEASURED
            elif one.expected is not None:
                seconds, factor = one.expected * pace, width
            elif one.name in same:
                seconds, factor = same[one.name], MEASURED
            else:
                unknown[one.name] = None
                continue
            low += seconds / factor
            high += seconds * factor
        lows.append(low)
        highs.append(high)
    if not any(highs) and unknown:
        return None
    # The stages of a method run in sequence, so the total time is at least the time of the longest
    # method.
    low, high = (max([sum(part) / workers, *part], default=0.0) for part in (lows, highs))
    return TimeLeft(low, high, tuple(unknown))


def time_range(low: float, high: float) -> str:
    """Format a range of seconds for people: `under a minute`, `8 to 12 minutes`, `about 10
    minutes`, `1.5 to 3.2 hours`."""
    if high < 60:
        return "under a minute"
    minutes = [max(round(seconds / 60), 1) for seconds in (low, high)]
    # From three hours on, the range is in hours, with one decimal below ten hours.
    hours = [f"{seconds / 3600:{'.0f' if seconds >= 36000 else '.1f'}}" for seconds in (low, high)]
    first, last = hours if high >= 3 * 3600 else map(str, minutes)
    unit = "hour" if high >= 3 * 3600 else "minute"
    amount = f"about {last}" if first == last else f"{first} to {last}"
    return f"{amount} {unit}{'' if last == '1' else 's'}"


def write_failures(root: Path, failed: Sequence[str]) -> None:
    """Add `failed`, one text per failed stage, to the plan that `write_plan` wrote. The next
    command writes a plan without these texts."""
    write_plan(root, {**read_object(root / PLAN), "failed": list(failed)})


def write_plan(root: Path, content: Mapping[str, Any]) -> None:
    """Write the plan of a command to plan.json, for viewers of its run.

    `content` has `workers` and `methods`; the latter lists the stages of each method, with `name`,
    `folder` (relative) and `expected`. The file also has `order`, the methods in the order in which
    they first appeared in this folder.
    """
    old = read_object(root / PLAN).get("order")
    order = [*(old if isinstance(old, list) else []), *content["methods"]]
    root.mkdir(parents=True, exist_ok=True)
    write_atomic(
        root / PLAN, [json.dumps({**content, "order": list(dict.fromkeys(order))}, indent=1)]
    )

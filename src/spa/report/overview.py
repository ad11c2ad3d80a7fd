"""`spa runs`: what runs a folder holds, how far they are and what came out."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spa.errors import DataError
from spa.report.curves import PASS_1, Method, ends
from spa.report.reading import NoRunError, Run, Stage, flatten, open_run
from spa.tracking.console import printable

_FRESH_SECONDS = 15 * 60


@dataclass(frozen=True, slots=True)
class Line:
    """One run in the table."""

    name: str
    state: str
    result: str
    seeds: str
    duration: str


def list_runs(folder: Path, now: float) -> Iterator[Line]:
    """One line per run in `folder`, by name; `now` is the time in seconds since the epoch."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a directory. Give the folder that holds the runs, for example runs.")
    for path in sorted(folder.iterdir()):
        if not path.is_dir() or path.name.startswith("."):
            continue
        try:
            run = open_run(path)
            yield Line(printable(run.name), printable(_state(run, now)), _result(run), _seeds(run), _duration(run))
        except NoRunError:
            continue
        except DataError as error:
            yield Line(printable(path.name), "unreadable", printable(str(error))[:120], "", "")


def _times(stages: Iterable[Stage]) -> list[float]:
    rows = [row for stage in stages for row in stage.timings.values()]
    return [row["unix_time"] for row in rows if "unix_time" in row]


def _state(run: Run, now: float) -> str:
    """finished, running (something was written in the last quarter of an hour) or stopped; and the step."""
    if run.summary is not None or any(stage.name == "ppo" and not stage.arm and stage.done for stage in run.stages):
        return "finished"
    stages = sorted(
        run.stages, key=lambda stage: max((row.get("unix_time", 0) for row in stage.timings.values()), default=0)
    )
    last = stages[-1]
    step = max(last.metrics, default=0)
    total = flatten(last.config).get("trainer.total_training_steps") if last.name == "ppo" else None
    if last.name in ("ppo", "eval") and isinstance(total, int) and step >= total:
        return "finished"
    fresh = now - max(_times(run.stages), default=0) < _FRESH_SECONDS
    of = f" of {total}" if isinstance(total, int) else ""
    return f"{'running' if fresh else 'stopped'}: {last.arm + ' ' if last.arm else ''}{last.name} step {step}{of}"


def _result(run: Run) -> str:
    """Pass@1 before and after PPO, per arm."""
    parts = []
    for number, arm in enumerate(run.arms()):
        stages = tuple(stage for stage in run.stages if stage.arm == arm)
        before, after = ends(PASS_1, Method(arm, arm, run.name, number, stages))
        if before is not None and after is not None:
            parts.append(f"{arm + ' ' if arm else ''}{100 * before:.0f} → {100 * after:.0f} %")
    return printable(", ".join(parts)) or "–"


def _seeds(run: Run) -> str:
    summary: dict[str, Any] = run.summary or {}
    seeds = {str(entry.get("seed")) for entry in summary.get("seeds", ())} or {
        str(stage.seed) for stage in run.stages if stage.seed is not None
    }
    if not seeds and summary.get("seed") is not None:
        seeds = {str(summary["seed"])}
    return printable(", ".join(sorted(seeds))) or "–"


def _duration(run: Run) -> str:
    total = (run.summary or {}).get("seconds", {}).get("total")
    times = _times(run.stages)
    if not isinstance(total, int | float):
        if len(times) < 2:
            return "–"
        total = max(times) - min(times)
    minutes, seconds = divmod(round(total), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"

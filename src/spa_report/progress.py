"""Progress of each method of a run."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from spa.run.lock import LOCK
from spa.run.reading import RunFolder, StageFolder, flatten, is_stage, stage_rank


@dataclass(frozen=True, slots=True)
class Progress:
    """The latest stage of a method, the last step of it, and its number of steps if the
    configuration names it."""

    arm: str
    stage: str
    step: int
    total: int | None
    finished: bool

    @property
    def steps(self) -> str:
        """`2 of 36`, or `2` without a known total."""
        return f"{self.step}" if self.total is None else f"{self.step} of {self.total}"


def progress(run: RunFolder) -> list[Progress]:
    """One entry per method, for the seed that has come least far; the method that has come least
    far is first."""
    by_method: dict[str, list[tuple[tuple[bool, float, int, int], Progress]]] = {}
    # This dict is used as an ordered set of (method, seed).
    for arm, seed in {(stage.arm, stage.seed): None for stage in run.stages}:
        last = max(
            (stage for stage in run.stages if (stage.arm, stage.seed) == (arm, seed)),
            key=stage_rank,
        )
        state = _progress(last, run)
        # The key puts unfinished stages first, then sorts by round, stage and step. Each method
        # reports only its least advanced seed.
        by_method.setdefault(arm, []).append(
            ((state.finished, *stage_rank(last), state.step), state)
        )
    least = sorted(
        (min(states, key=lambda pair: pair[0]) for states in by_method.values()),
        key=lambda pair: pair[0],
    )
    return [state for _, state in least]


def unfinished(run: RunFolder) -> list[Progress]:
    """The methods that have not finished with every seed."""
    return [state for state in progress(run) if not state.finished]


def lacks_summary(run: RunFolder) -> bool:
    """Return whether a comparison has not written its summary, which it does after the last
    method."""
    # A comparison's lock file remains after its process ends. Without that file no summary is
    # expected.
    return (
        run.summary is None
        and (run.path / LOCK).is_file()
        and any(stage.arm for stage in run.stages)
    )


def in_progress(run: RunFolder) -> bool:
    """Return whether a method, or the comparison as a whole, has not finished."""
    return lacks_summary(run) or bool(unfinished(run))


def _progress(stage: StageFolder, run: RunFolder) -> Progress:
    total = (
        flatten(stage.config).get("trainer.total_training_steps") if stage.name == "ppo" else None
    )
    total = total if isinstance(total, int) else None
    result = re.search(r"global_step_(\d+)", stage.result or "")
    step = max(int(result[1]) if result else 0, max(stage.metrics, default=0))
    # It is written when the evaluation ends.
    evaluated = stage.evaluation.is_file()
    # All stages together lock the run's folder, so that PPO is to come. Stages that were asked for
    # alone lock their own folders only.
    alone = is_stage(run.path) or not (run.path / LOCK).is_file()
    finished = stage.name == "eval" or evaluated or (alone and stage.result is not None)
    if stage.name == "ppo":
        finished = stage.result is not None if total is None else step >= total
    return Progress(stage.arm, stage.name, step, total, finished)


def shown_step(steps: Sequence[int | None]) -> str:
    """The step of these results in a heading, as long as methods are in progress."""
    known = sorted({step for step in steps if step is not None})
    return f"at step {' and '.join(map(str, known))}" if known else "so far"

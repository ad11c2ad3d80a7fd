"""From finished trainings to numbers: Pass@k before and after PPO with intervals, curves, differences, verdicts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spa.evaluate.aggregate import interval_json
from spa.evaluate.passk import pass_at_k
from spa.evaluate.statistics import Interval, bootstrap_mean, iqm_interval, paired_difference, rate_interval, sentence
from spa.recipes.grid import Stage, Training, stages_of
from spa.recipes.paper_tables import Finding
from spa.recipes.summary import Puzzles, puzzles_of
from spa.tracking.encoding import read_lines

KS = (1, 8)
MANY_SEEDS = 3  # from here on seeds are resampled too
MARGIN = 0.05  # that nothing is gained or lost takes an interval that leaves less than this
Curve = dict[int, tuple[float, float]]
"""Validation step -> Pass@1 and Pass@8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """One training: outcomes per puzzle before and after PPO, and Pass@k at every validation."""

    seed: int
    before: Puzzles
    after: Puzzles
    curve: Curve
    world_model: Mapping[str, float]
    folders: tuple[str, ...]


def read_training(training: Training, root: Path, seed: int) -> SeedResult | None:
    """What training number `seed` gave; None if it is not finished."""
    stages = stages_of(training, root)
    if not all(stage.done for stage in stages):
        return None
    folder = Path(stages[-1].folder)
    last = training.ppo.trainer.total_training_steps
    outcomes = {step: _outcomes(folder, step) for step in (0, last)}
    return SeedResult(
        seed=seed,
        before=outcomes[0],
        after=outcomes[last],
        curve=read_curve(folder / "metrics.jsonl"),
        world_model=_world_model(stages),
        folders=tuple(Path(stage.folder).name for stage in stages),
    )


def _outcomes(folder: Path, step: int) -> Puzzles:
    path = folder / "trajectories" / f"val-{step:06d}.jsonl"
    return puzzles_of(path) if path.is_file() else {}


def _world_model(stages: Sequence[Stage]) -> dict[str, float]:
    path = next((Path(stage.folder) / "gate.json" for stage in stages if stage.kind == "sft"), None)
    if path is None or not path.is_file():
        return {}
    gate = json.loads(path.read_text(encoding="utf-8"))
    return {name: round(float(gate[name]), 4) for name in ("observation_exact", "prediction_exact", "entropy")}


def read_curve(path: Path) -> Curve:
    """Pass@1 and Pass@8 of every validation in a `metrics.jsonl`, averaged over environment tags."""
    curve: Curve = {}
    for _, line in read_lines(path):
        found = [_mean_of(line, f"pass@{k}") for k in KS]
        if found[0] is not None:
            curve[int(line["step"])] = (found[0], found[1] if found[1] is not None else found[0])
    return curve


def _mean_of(line: Mapping[str, Any], name: str) -> float | None:
    values = [value for key, value in line.items() if key.startswith("val-env/") and key.endswith(f"/{name}")]
    return float(np.mean(values)) if values else None


def per_puzzle(puzzles: Puzzles, k: int) -> dict[str, float]:
    """Pass@k of every puzzle with at least k attempts."""
    return {name: float(pass_at_k(n, c, k)) for name, (n, c) in puzzles.items() if n >= k}


def rates(results: Sequence[SeedResult], moment: str) -> dict[str, dict[str, float | int]]:
    """`pass@k` -> interval over puzzles, and over seeds if there are enough of them."""
    out = {}
    for k in KS:
        strata = [list(per_puzzle(getattr(result, moment), k).values()) for result in results]
        if strata and all(strata):
            out[f"pass@{k}"] = interval_json(_interval(strata))
    return out


def _interval(strata: list[list[float]]) -> Interval:
    mean = np.mean([np.mean(part) for part in strata])
    if len(strata) < MANY_SEEDS or mean in (0.0, 1.0):
        return rate_interval(strata, seed=0)
    return bootstrap_mean(strata, seed=0, resample_seeds=True)


def difference(
    first: Sequence[SeedResult], second: Sequence[SeedResult], *, k: int = 1, second_moment: str = "after"
) -> Interval | None:
    """Pass@k after PPO of the first minus that of the second, paired by puzzle inside the seeds that both have; None if
    there is nothing to pair."""
    others = {result.seed: result for result in second}
    pairs = []
    for result in first:
        if result.seed in others:
            mine = per_puzzle(result.after, k)
            other = per_puzzle(getattr(others[result.seed], second_moment), k)
            shared = sorted(mine.keys() & other.keys())
            pairs.append(([mine[name] for name in shared], [other[name] for name in shared]))
    if not pairs or not all(mine for mine, _ in pairs):
        return None
    ours, theirs = ([np.array(pair[side]) for pair in pairs] for side in (0, 1))
    return paired_difference(ours, theirs, seed=0, resample_seeds=len(pairs) >= MANY_SEEDS)


def judge(finding: Finding, results: Mapping[str, Sequence[SeedResult]]) -> dict[str, Any]:
    """Whether a claim was found here, JSON-ready. `results` are those of the finding's environment by method.

    `reproduced`, `contradicted` (the interval lies on the other side), `no difference found`, or `not run`. A claim
    that nothing is gained, or lost, is reproduced if the interval leaves no gain, or loss, of `MARGIN` or more;
    otherwise it is `undecided`: not to have found a difference is no evidence that there is none.
    """
    first = results.get(finding.first) or ()
    second = results.get(finding.second) or ()
    base = {"text": finding.text, "environment": finding.environment, "kind": finding.kind}
    if finding.kind == "keeps":
        second = first
        gap = difference(first, first, k=8, second_moment="before")
        names = (f"Pass@8 of {finding.first} after PPO", "before")
    else:
        gap = difference(first, second)
        names = (finding.first, finding.second)
    if gap is None:
        return {**base, "verdict": "not run"}
    if finding.kind == "better":
        verdict = "reproduced" if gap.low > 0 else "contradicted" if gap.high < 0 else "no difference found"
    elif finding.kind == "no_gain":
        verdict = "contradicted" if gap.low > 0 else "reproduced" if gap.high < MARGIN else "undecided"
    else:
        verdict = "contradicted" if gap.high < 0 else "reproduced" if gap.low > -MARGIN else "undecided"
    return {
        **base,
        "verdict": verdict,
        "difference": interval_json(gap),
        "sentence": sentence(*names, gap),
        "seeds": len({result.seed for result in first} & {result.seed for result in second}),
    }


def interquartile_means(results: Mapping[tuple[str, str], Sequence[SeedResult]]) -> dict[str, Any]:
    """Per method the interquartile mean of Pass@1 over environments and seeds, of methods that ran in all of them.

    `results` by (environment, method).
    """
    environments = dict.fromkeys(environment for environment, _ in results)
    out = {}
    for method in dict.fromkeys(method for _, method in results):
        scores = [
            [float(np.mean(list(per_puzzle(r.after, 1).values()))) for r in results.get((environment, method), ())]
            for environment in environments
        ]
        if len(environments) > 1 and all(scores):
            out[method] = interval_json(iqm_interval(scores, seed=0))
    return out


def mean_curve(results: Sequence[SeedResult]) -> list[dict[str, float | int]]:
    """Validation steps that all seeds have, with the means over seeds and the range of Pass@1."""
    if not results:
        return []
    shared = sorted(set.intersection(*(set(result.curve) for result in results)))
    rows = []
    for step in shared:
        values = np.array([result.curve[step] for result in results])
        rows.append(
            {
                "step": step,
                "pass@1": round(float(values[:, 0].mean()), 4),
                "pass@8": round(float(values[:, 1].mean()), 4),
                "low": round(float(values[:, 0].min()), 4),
                "high": round(float(values[:, 0].max()), 4),
            }
        )
    return rows

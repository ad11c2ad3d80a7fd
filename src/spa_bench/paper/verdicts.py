"""Judge the paper's claims by the results of training runs. Also computes rates, means over
environments, and curves."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spa.evaluation.aggregate import interval_json
from spa.evaluation.statistics import iqm_interval, rate_interval, sentence
from spa_bench.paper.paper import Finding
from spa_sweeps.results import KS, SeedResult, difference, per_puzzle

MARGIN = 0.05
"""Equivalence margin as a fraction. A claim that there is no gain (or loss) is reproduced only if
the interval excludes a gain (or loss) of this size."""


def rates(results: Sequence[SeedResult], moment: str) -> dict[str, dict[str, float | int]]:
    """Return the mean and interval of each `pass@k` at a moment of training (a key of
    `SeedResult.moments`). The interval is over seeds if there are enough, otherwise over
    puzzles."""
    out = {}
    for k in KS:
        strata = [
            list(per_puzzle(result.moments.get(moment, {}), k).values()) for result in results
        ]
        # If some seed has no puzzle with k attempts, omit Pass@k, because its mean would be over
        # fewer seeds.
        if strata and all(strata):
            out[f"pass@{k}"] = interval_json(rate_interval(strata, seed=0))
    return out


def judge(finding: Finding, results: Mapping[str, Sequence[SeedResult]]) -> dict[str, Any]:
    """Judge a claim, and return a JSON-ready result. `results` maps a method to its results in the
    claim's environment, one per seed.

    The verdict is `reproduced`, `contradicted` (the interval is on the other side of 0), `no
    difference found`, or `not run`. A claim that there is no gain (or loss) is reproduced if the
    interval excludes a gain (or loss) of `MARGIN` or more. It is `undecided` if it is neither
    reproduced nor contradicted, because a difference may exist that was not found.
    """
    first = results.get(finding.first) or ()
    second = results.get(finding.second) or ()
    base = {"text": finding.text, "environment": finding.environment, "kind": finding.kind}
    # `keeps` compares a training run with itself: Pass@8 after PPO minus before PPO, paired by
    # puzzle.
    if finding.kind == "keeps":
        second = first
        gap = difference(first, first, k=8, moments=("after", "before"))
        names = (f"Pass@8 of {finding.first} after PPO", "before")
    else:
        gap = difference(first, second)
        names = (finding.first, finding.second)
    if gap is None:
        return {**base, "verdict": "not run"}
    if finding.kind == "better":
        verdict = (
            "reproduced"
            if gap.low > 0
            else "contradicted"
            if gap.high < 0
            else "no difference found"
        )
    # A claim of no difference needs an equivalence test, because an interval that includes 0 proves
    # nothing.
    elif finding.kind == "no_gain":
        verdict = (
            "contradicted" if gap.low > 0 else "reproduced" if gap.high < MARGIN else "undecided"
        )
    else:
        verdict = (
            "contradicted" if gap.high < 0 else "reproduced" if gap.low > -MARGIN else "undecided"
        )
    return {
        **base,
        "verdict": verdict,
        "difference": interval_json(gap),
        "sentence": sentence(*names, gap),
        "seeds": len({result.seed for result in first} & {result.seed for result in second}),
    }


def interquartile_means(results: Mapping[tuple[str, str], Sequence[SeedResult]]) -> dict[str, Any]:
    """Interquartile mean of Pass@1 over environments and seeds, for each method that ran in all
    environments. Empty if there is only one environment.

    `results` maps (environment, method) to one result per seed.
    """
    environments = dict.fromkeys(environment for environment, _ in results)
    out = {}
    for method in dict.fromkeys(method for _, method in results):
        scores = [
            [
                float(np.mean(list(per_puzzle(r.moments["after"], 1).values())))
                for r in results.get((environment, method), ())
            ]
            for environment in environments
        ]
        # Omit a method that lacks an environment, because a mean over only the easier games would
        # be too high.
        if len(environments) > 1 and all(scores):
            out[method] = interval_json(iqm_interval(scores))
    return out


def mean_curve(results: Sequence[SeedResult]) -> list[dict[str, float | int]]:
    """Compute, for each validation step that all seeds have, the mean Pass@1 and its range over
    seeds (`low`, `high`). The mean Pass@8 is included if all seeds have it."""
    if not results:
        return []
    # A step that only some seeds have would make the curve jump.
    shared = sorted(set.intersection(*(set(result.curve) for result in results)))
    rows = []
    for step in shared:
        firsts = [result.curve[step][0] for result in results]
        # Pass@8 needs eight attempts per puzzle, which not every validation has.
        eighths = [value for result in results if (value := result.curve[step][1]) is not None]
        rows.append(
            {
                "step": step,
                "pass@1": round(float(np.mean(firsts)), 4),
                **(
                    {"pass@8": round(float(np.mean(eighths)), 4)}
                    if len(eighths) == len(results)
                    else {}
                ),
                "low": round(min(firsts), 4),
                "high": round(max(firsts), 4),
            }
        )
    return rows

"""Compute the results of finished training runs: Pass@k, paired differences with intervals, curves,
and the summary of a comparison."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spa.errors import DataError, TrainingError
from spa.evaluation.passk import Puzzles, outcomes, pass_at_k
from spa.evaluation.statistics import (
    Interval,
    paired_by_puzzle,
)
from spa.examples.source import source_of
from spa.install import versions
from spa.recipes.evaluate_puzzles import reference_scores
from spa.run.files import METRICS, UNMEASURED, read_lines, read_object
from spa.run.manifest import Manifest
from spa_sweeps.budget import budget
from spa_sweeps.grid import FOLDERS, TrainingRun, tasks_of, validation

if TYPE_CHECKING:
    from spa_sweeps.compare import Comparison

KS = (1, 8)
# Decimals of a stored mean. Tables round again, so with only 4 decimals, 43.945 % would be printed
# as 44.0.
DIGITS = 6
IN_PLAY = {"prediction_em": "predictions", "obs_exact": "observations", "format_rate": "format"}
"""Metric of validation turns -> display name."""
Curve = dict[int, tuple[float, float | None]]
"""Validation step -> (Pass@1, Pass@8); Pass@8 is None if there are too few attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """Results of a method's training run with one seed."""

    seed: int
    # Outcomes per puzzle: `before` PPO, `after` its configured steps, and `after_total` if it
    # continued until methods had equally many episodes in total.
    moments: Mapping[str, Puzzles]
    curve: Curve  # Pass@1 and Pass@8 at every validation step
    world_model: Mapping[str, float]  # world-model accuracies by name


def read_training(training: TrainingRun, seed: int) -> SeedResult | None:
    """Read the results of training run number `seed`, or None if it is not finished.

    Raises DataError if the size of a result file differs from the size that the stage recorded.
    """
    tasks = tasks_of(training)
    if not all(task.done for task in tasks):
        return None
    ppo = tasks[-1].folder
    trainer = training.ppo.trainer
    # A training run that is trained longer, until total episodes are equal, is also compared at the
    # step where the others stop.
    steps = {"before": 0, "after": trainer.also_test_at or trainer.total_training_steps}
    if trainer.also_test_at:
        steps["after_total"] = trainer.total_training_steps
    files = {
        name: path for name, step in steps.items() if (path := validation(ppo, step)).is_file()
    }
    # Sizes are compared with the stage's record, since a truncated or edited file would change
    # results silently.
    known = Manifest.read(ppo)
    for path in (*files.values(), *ppo.glob(METRICS)):
        if known and (problem := known.problem(path, ppo)):
            raise DataError(
                f"{problem}. The results are computed from the file. Restore the file, or remove {ppo} and run the "
                "same command again to train from scratch."
            )
    return SeedResult(
        seed=seed,
        moments={
            # Sorted by name, because the bootstrap depends on the order.
            name: dict(sorted(outcomes(episode for _, episode in read_lines(path)).items()))
            for name, path in files.items()
        },
        curve=read_curve(ppo / METRICS),
        world_model=(
            _world_model(training.folder / FOLDERS["sft"] / "gate.json")
            | _in_play(ppo / METRICS, steps["before"], steps["after"])
            if learns_states(training)
            else {}
        ),
    )


def read_trainings(trainings: Sequence[TrainingRun]) -> list[SeedResult]:
    """Read the results of a method's finished training runs, one per seed."""
    results = (read_training(training, seed) for seed, training in enumerate(trainings))
    return [result for result in results if result is not None]


def learns_states(training: TrainingRun) -> bool:
    """Return whether SFT trains on responses with states, rather than on base format."""
    return training.world_model is not None and source_of(training.world_model).has_states


def _world_model(path: Path) -> dict[str, float]:
    """Read the world-model gate's metrics after SFT. Empty if there is no readable gate file, or if
    nothing was measured."""
    gate = read_object(path)
    if not gate or gate.get("diagnosis") in UNMEASURED:
        return {}
    names = ("observation_exact", "prediction_exact", "entropy", "puzzles", "puzzles_seen")
    metrics = {name: round(float(gate[name]), 4) for name in names if gate.get(name) is not None}
    return metrics | {"gate_passed": float(gate.get("passed", True))}


def _in_play(path: Path, before: int, after: int) -> dict[str, float]:
    """Read the metrics in `IN_PLAY` on held-out puzzles, as `<name>_before` and `<name>_after` PPO.
    Empty if responses contain no states."""
    lines = {line["step"]: line for _, line in read_lines(path)}
    return {
        f"{name}_{moment}": round(value, 4)
        for name in IN_PLAY
        for moment, step in (("before", before), ("after", after))
        if (value := _mean_of(lines.get(step, {}), f"wm/{name}")) is not None
    }


def read_curve(path: Path) -> Curve:
    """Read Pass@1 and Pass@8 of every validation from a `metrics.jsonl`, averaged over environment
    tags."""
    curve: Curve = {}
    for _, line in read_lines(path):
        rates = [_mean_of(line, f"pass@{k}") for k in KS]
        if rates[0] is not None:
            curve[int(line["step"])] = (rates[0], rates[1])
    return curve


def _mean_of(line: Mapping[str, Any], name: str) -> float | None:
    # Each tag has its own metric. In the mean, every tag has the same weight, however many puzzles
    # it has.
    values = [
        value
        for key, value in line.items()
        if key.startswith("val-env/") and key.endswith(f"/{name}")
    ]
    return float(np.mean(values)) if values else None


def per_puzzle(puzzles: Puzzles, k: int) -> dict[str, float]:
    """Return puzzle -> unbiased Pass@k, for puzzles with at least k attempts."""
    return {name: float(pass_at_k(n, c, k)) for name, (n, c) in puzzles.items() if n >= k}


def difference(
    first: Sequence[SeedResult],
    second: Sequence[SeedResult],
    *,
    k: int = 1,
    moments: tuple[str, str] = ("after", "after"),
    resamples: int = 10_000,
) -> Interval | None:
    """Return the difference in Pass@k, first - second, paired by puzzle within the seeds that both
    have, or None if there is nothing to pair. `moments` selects the validation of each side, such
    as `before` or `after` PPO."""
    # Seeds of both sides are matched by number, since one side may have finished more of them.
    others = {result.seed: result for result in second}
    pairs = [
        (
            per_puzzle(one.moments.get(moments[0], {}), k),
            per_puzzle(others[one.seed].moments.get(moments[1], {}), k),
        )
        for one in first
        if one.seed in others
    ]
    return paired_by_puzzle(pairs, seed=0, resamples=resamples)


def summarize(
    made: "Comparison", *, seconds: float, peak_bytes: int, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Compute the content of summary.json. The top level has means over seeds. With several seeds,
    `seeds` has the results of each.

    `before` is the previous summary. Its seconds are added to `seconds`, and the larger peak memory
    is kept.
    """
    seeds_of = {name: read_trainings(trainings) for name, trainings in made.trainings.items()}
    if changed := [name for name, parts in seeds_of.items() if len(parts) < made.cfg.compare.seeds]:
        raise TrainingError(
            f"the results of {', '.join(changed)} no longer fit: a file that decides them, such as a game, a reward or "
            "a data file, changed during training. Undo the change, or run the same command again with --from-scratch."
        )
    seeds = [
        {
            "seed": seed,
            "methods": {name: _means(parts[seed]) for name, parts in seeds_of.items()},
            "world_model": dict(seeds_of[made.reference][seed].world_model),
            "reference_policies": reference_scores(made.trainings[made.reference][seed].ppo),
        }
        for seed in range(made.cfg.compare.seeds)
    ]
    old_total = float(before.get("seconds", {}).get("total", 0.0))
    summary: dict[str, Any] = {
        "name": made.cfg.trainer.experiment_name,
        "seed": made.cfg.seed.train,
        "reference": made.reference,
        "descriptions": {name: _description(arm) for name, arm in made.arms.items()},
        "methods": mean_over_seeds([entry["methods"] for entry in seeds]),
        "world_model": mean_over_seeds([entry["world_model"] for entry in seeds]),
        "reference_policies": mean_over_seeds([entry["reference_policies"] for entry in seeds]),
        "difference": _differences(made, seeds_of),
        "episodes": {
            name: episodes_played(trainings[0]) for name, trainings in made.trainings.items()
        },
        "sampled_tokens": {
            name: tokens_sampled([one for one in trainings if _began_ppo(one)])
            for name, trainings in made.trainings.items()
        },
        "seconds": {**stage_seconds(made), "total": round(old_total + seconds, 1)},
        "peak_memory_gb": max(round(peak_bytes / 2**30, 2), before.get("peak_memory_gb", 0.0)),
        "versions": versions(),
    }
    if not seconds and before:
        summary |= {
            key: before[key] for key in ("name", "peak_memory_gb", "versions") if key in before
        }
    if made.cfg.compare.seeds > 1:
        summary["seeds"] = seeds
    return summary


def _description(arm: Any) -> str:
    return " ".join([arm.method.description, *(f"({text})" for text in arm.overrides)])


def _means(result: SeedResult) -> dict[str, dict[str, float]]:
    """Return mean Pass@1 and Pass@8 for `before`, `after` and `after_total`. Pass@8 is left out
    unless every puzzle has enough attempts."""
    out: dict[str, dict[str, float]] = {}
    for name, puzzles in result.moments.items():
        values = {k: per_puzzle(puzzles, k) for k in KS}
        out[name] = {
            f"pass@{k}": round(float(np.mean(list(shares.values()))), DIGITS)
            for k, shares in values.items()
            # Pass@8 over some of the puzzles would not be comparable with Pass@1 over all.
            if len(shares) == len(puzzles)
        }
    return out


def _differences(
    made: "Comparison", seeds_of: Mapping[str, Sequence[SeedResult]]
) -> dict[str, Any]:
    """Return Pass@1 of the reference minus Pass@1 of each other method, with a 95 % interval.

    The key `<name>` compares both after PPO (`after`). `<name>_same_total_episodes` compares the
    method's `after_total` with that of the reference, or with the reference's `after` if not all of
    its seeds have `after_total`. Differences that cannot be computed are left out."""
    out: dict[str, Any] = {}
    reference = seeds_of[made.reference]
    longest = (
        "after_total"
        if reference and all("after_total" in one.moments for one in reference)
        else "after"
    )
    for name, parts in seeds_of.items():
        for moments, key in (
            (("after", "after"), name),
            ((longest, "after_total"), f"{name}_same_total_episodes"),
        ):
            gap = difference(
                reference, parts, moments=moments, resamples=made.cfg.compare.bootstrap
            )
            if name != made.reference and gap is not None:
                out[key] = {
                    **{part: round(getattr(gap, part), DIGITS) for part in ("mean", "low", "high")},
                    "n": gap.n,
                    "over": gap.over,
                }
    return out


def _began_ppo(training: TrainingRun) -> bool:
    return (training.folder / FOLDERS["ppo"] / METRICS).is_file()


def tokens_sampled(trainings: Sequence[TrainingRun]) -> dict[str, int]:
    """Return the number of tokens that the model sampled in self-play and PPO, as a mean over
    seeds. `after` counts up to the step at which methods are compared, and `longer` up to the end
    of PPO if it continued."""
    totals: dict[str, list[float]] = {}
    for training in trainings:
        used = {step: so_far.tokens for step, so_far in budget(training).items()}
        after = training.ppo.trainer.also_test_at or training.ppo.trainer.total_training_steps
        for name, step in (("after", after), ("longer", training.ppo.trainer.total_training_steps)):
            if step in used and (name == "after" or step > after):
                totals.setdefault(name, []).append(used[step])
    return {name: round(float(np.mean(values))) for name, values in totals.items()}


def episodes_played(training: TrainingRun) -> dict[str, int]:
    """Return numbers of training episodes. `ppo` counts PPO episodes up to the step at which
    methods are compared, and `ppo_longer` all PPO episodes if PPO continued. `self_play` counts
    self-play episodes."""
    ppo = training.ppo
    first = training.world_model
    steps = ppo.trainer.also_test_at or ppo.trainer.total_training_steps
    # Self-play and PPO may have groups of different sizes. Written searches are not episodes.
    per_step, per_batch = (
        cfg.es_manager.train.env_groups * cfg.es_manager.train.group_size
        for cfg in (ppo, first or ppo)
    )
    batches = sum(
        own.cfg.generate.num_batches for own in training.rounds if source_of(own.cfg).plays
    )
    played = {"ppo": steps * per_step, "self_play": batches * per_batch}
    if ppo.trainer.also_test_at:
        played["ppo_longer"] = ppo.trainer.total_training_steps * per_step
    return played


def mean_over_seeds(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Average nested dicts of numbers over seeds. A number that some seed lacks, such as Pass@8 if
    an attempt failed, is left out, because its mean would cover fewer seeds."""
    out: dict[str, Any] = {}
    for key, value in entries[0].items():
        others = [entry[key] for entry in entries if key in entry]
        if isinstance(value, dict):
            out[key] = mean_over_seeds(others)
        elif len(others) == len(entries):
            out[key] = round(float(np.mean(others)), DIGITS)
    return out


def stage_seconds(made: "Comparison") -> dict[str, float]:
    """Return `<method>/<stage>` -> seconds, summed over seeds. A shared stage counts for every
    method that uses it."""
    out: dict[str, float] = defaultdict(float)
    for name, trainings in made.trainings.items():
        for task in [task for training in trainings for task in tasks_of(training)]:
            known = Manifest.read(task.folder)
            out[f"{name}/{task.folder.name}"] += known.seconds if known else 0.0
    return {name: round(value, 1) for name, value in out.items()}

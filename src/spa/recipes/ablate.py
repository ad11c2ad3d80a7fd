"""One ablation beside the recipe, on any configuration."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spa.config.load import load_config
from spa.errors import ConfigError
from spa.evaluate.aggregate import interval_json
from spa.evaluate.statistics import sentence
from spa.recipes import ablations
from spa.recipes.ablations import REFERENCE
from spa.recipes.experiment_results import SeedResult, difference, mean_curve, rates, read_training
from spa.recipes.grid import PoolOf, Stage, Training, Work, distinct, do_stage, processes, with_results
from spa.recipes.summary import versions
from spa.tracking.encoding import write_atomic

RESULTS = "ablations.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationPlan:
    """The trainings of an ablation and of the recipe, one per seed, in a common folder."""

    name: str
    root: Path
    trainings: dict[str, tuple[Training, ...]]  # by method

    @property
    def stages(self) -> list[Stage]:
        """Every stage once."""
        return distinct([training for parts in self.trainings.values() for training in parts], self.root)


def make_plan(name: str, config: str, overrides: list[str], *, seeds: int) -> AblationPlan:
    """The plan. Everything lies in `<run_dir>/ablations`, where other ablations of the same run find it too.

    Raises ConfigError for an unknown name, or one that does not go with the configuration.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}; it must be at least 1")
    ablations.method(name)
    root = Path(load_config(config, overrides).trainer.run_dir) / "ablations"
    trainings = {
        method: tuple(
            ablations.training(method, config, overrides, seed=seed, label=f"{method}/seed {seed}")
            for seed in range(seeds)
        )
        for method in dict.fromkeys((REFERENCE, name))
    }
    return AblationPlan(name=name, root=root, trainings=trainings)


def run(plan: AblationPlan, *, parallel: int = 2, pool: PoolOf = processes, work: Work = do_stage) -> dict[str, Any]:
    """Run what is missing, add to `ablations.json` what is finished, return this ablation's part. When a stage fails,
    it is written before TrainingError is raised."""
    plan.root.mkdir(parents=True, exist_ok=True)
    return with_results(plan.stages, lambda: _written(plan), parallel=parallel, pool=pool, work=work)


def _written(plan: AblationPlan) -> dict[str, Any]:
    result, path = results(plan), plan.root / RESULTS
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    write_atomic(path, [json.dumps({**known, plan.name: result}, indent=1, sort_keys=True) + "\n"])
    return result


def results(plan: AblationPlan) -> dict[str, Any]:
    """Pass@k of both before and after PPO, and their difference, JSON-ready."""
    found: dict[str, list[SeedResult]] = {}
    for method, trainings in plan.trainings.items():
        read = [read_training(training, plan.root, seed) for seed, training in enumerate(trainings)]
        found[method] = [part for part in read if part is not None]
    gap = difference(found[plan.name], found[REFERENCE]) if plan.name != REFERENCE else None
    return {
        "name": plan.name,
        "methods": {
            method: {
                "description": ablations.METHODS[method].description,
                "seeds": len(parts),
                "before": rates(parts, "before"),
                "after": rates(parts, "after"),
                "world_model": [dict(part.world_model) for part in parts],
                "curve": mean_curve(parts),
                "folders": [list(part.folders) for part in parts],
            }
            for method, parts in found.items()
        },
        "difference": None if gap is None else interval_json(gap),
        "sentence": "" if gap is None else sentence(plan.name, REFERENCE, gap),
        "versions": versions(),
    }


def table(result: dict[str, Any]) -> list[str]:
    """The result in a few lines."""
    lines = []
    for method, found in result["methods"].items():
        parts = []
        for moment in ("before", "after"):
            rate = found[moment].get("pass@1")
            parts.append(f"{moment} –" if rate is None else f"{moment} {100 * rate['mean']:.1f}")
        seeds = f"{found['seeds']} seed{'' if found['seeds'] == 1 else 's'}"
        lines.append(f"{method}: Pass@1 {', '.join(parts)} ({seeds}). {found['description']}")
    return [*lines, result["sentence"]] if result["sentence"] else lines

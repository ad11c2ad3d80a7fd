"""The paper's tables as one resumable grid of training runs. This module plans and runs the grid,
judges the claims, and writes the results file and the page."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from spa.config.load import load_config
from spa.errors import ConfigError
from spa.install import versions
from spa.run.files import read_object, write_atomic
from spa_bench.paper.hours import hours_of
from spa_bench.paper.page import write_page
from spa_bench.paper.paper import NAMES, PERPLEXITY, SCALES, Experiment, PaperTable, paper_table
from spa_bench.paper.verdicts import interquartile_means, judge, mean_curve, rates
from spa_measurements.measure_perplexity import measure_perplexity
from spa_sweeps.compare import training_of
from spa_sweeps.grid import (
    Plan,
    PoolOf,
    TrainingRun,
    Work,
    do_task,
    finish_grid,
    own_process,
    plan_grid,
    time_of,
)
from spa_sweeps.methods import method
from spa_sweeps.results import SeedResult, read_trainings

RESULTS = "results.json"
PERPLEXITY_TAGS = ("SimpleSokoban", "FrozenLake", "Sudoku", "WebShop")


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A planned reproduction: its tables, and the training runs of every experiment."""

    scale: str
    root: Path
    tables: tuple[PaperTable, ...]
    trainings: Mapping[str, tuple[TrainingRun, ...]]  # experiment id -> one training run per seed
    models: tuple[str, ...]  # models whose state perplexity is measured
    overrides: tuple[str, ...]
    only: tuple[str, ...] = ()  # texts that choose experiments; none: all

    @property
    def experiments(self) -> list[Experiment]:
        """The planned experiments of all tables, without duplicates."""
        by_id = {
            row.id: row
            for table in self.tables
            for row in table.experiments
            if row.id in self.trainings
        }
        return list(by_id.values())

    @cached_property
    def grid(self) -> Plan:
        """The plan of all stages. A stage that several training runs share occurs once."""
        return plan_grid(
            [training for parts in self.trainings.values() for training in parts], [self.root]
        )

    def hours(self, devices: int) -> float:
        """Approximate hours of the missing stages, with one stage at a time on each device."""
        measured = SCALES[self.scale].hours
        return time_of(self.grid, lambda task: hours_of(task, measured), workers=devices)


def make_plan(
    names: Sequence[str],
    scale: str,
    root: Path,
    *,
    seeds: int | None = None,
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> Reproduction:
    """Plan the named tables (`all` for all of them) at a scale.

    `only` keeps an experiment if one of these texts is its id or a part of its id. `overrides`
    apply to every training run. Raises ConfigError for an unknown table or scale, for `seeds` below
    1, and if `only` matches no experiment.
    """
    wanted = tuple(NAMES) if "all" in names else tuple(dict.fromkeys(names))
    tables = tuple(paper_table(name, scale) for name in wanted)
    count = SCALES[scale].seeds if seeds is None else seeds
    if count < 1:
        raise ConfigError(f"--seeds is {count}. Give a number of at least 1.")
    # An experiment that is in several tables is trained once.
    rows = {row.id: row for table in tables for row in table.experiments}
    trainings = {
        key: tuple(_training(row, scale, root, overrides, seed) for seed in range(count))
        for key, row in rows.items()
        # An exact id selects only itself, even if it is part of a longer id.
        if not only or any(text == key or (text not in rows and text in key) for text in only)
    }
    models = SCALES[scale].models if "perplexity" in wanted else ()
    if not trainings and not models:
        raise ConfigError(
            f"--only {', '.join(only)} matches no experiment of {', '.join(wanted)}. List the experiments with "
            "--dry-run."
        )
    return Reproduction(
        scale=scale,
        root=root,
        tables=tables,
        trainings=trainings,
        models=models,
        overrides=tuple(overrides),
        only=tuple(only),
    )


def _training(
    row: Experiment, scale: str, root: Path, overrides: Sequence[str], seed: int
) -> TrainingRun:
    """Plan the training run of an experiment with one seed, in
    `<root>/<model>/<environment>/seed_<n>/<method>`."""
    setting = SCALES[scale].settings[row.environment]
    changes = (*SCALES[scale].common, *setting.overrides, f"model_path={row.model}", *overrides)
    folders = (row.model.rpartition("/")[2], row.environment, f"seed_{seed}", row.method)
    # Replace colons, commas and spaces in names, because they are awkward in folder names.
    folder = root.joinpath(*(re.sub(r"[^\w.-]+", "-", name) for name in folders))
    return training_of(
        method(row.method),
        setting.preset,
        changes,
        folder,
        f"{row.id}/seed {seed}",
        seed=seed,
        root=root,
    )


def run_tables(
    made: Reproduction,
    *,
    train: bool = True,
    parallel: int = 2,
    page: Path | None = None,
    notes: Mapping[str, str] | None = None,
    pool: PoolOf = own_process,
    work: Work = do_task,
) -> dict[str, Any]:
    """Run the missing stages if `train` is set.

    Then write `results.json` from the finished runs and return its content. With `page`, also write
    the page with `notes` (see `write_page`). If a stage fails, both files are written before
    TrainingError is raised.
    """
    made.root.mkdir(parents=True, exist_ok=True)
    failed = None
    if train:
        trainings = made.trainings.values()
        # `replace` makes a copy without the cached plan, so that stages that other processes have
        # finished count as done.
        failed = finish_grid(
            trainings, lambda: replace(made).grid, parallel=parallel, pool=pool, work=work
        )
    measured = {model: _perplexity(made, model, measure=train) for model in made.models}
    result = results(
        made, {model: perplexities for model, perplexities in measured.items() if perplexities}
    )
    write_atomic(
        made.root / RESULTS,
        [json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n"],
    )
    if page is not None:
        write_page(result, page, notes=notes)
    # Raise only after the results of all finished stages are written.
    if failed is not None:
        raise failed
    return result


def _perplexity(made: Reproduction, model: str, *, measure: bool) -> dict[str, Any]:
    """Return the stored state perplexity of a model. If none is stored, measure and store it if
    `measure` is set, else return an empty dictionary."""
    path = made.root / f"perplexity-{model.rpartition('/')[2].replace(':', '-')}.json"
    known = read_object(path)
    if known or not measure:
        return known
    # State perplexity depends only on the model, so only overrides of the trainer (device, threads)
    # apply.
    cfg = load_config(
        "base", [override for override in made.overrides if override.startswith("trainer.")]
    )
    return measure_perplexity(cfg, model, PERPLEXITY_TAGS, output=path)


def results(made: Reproduction, perplexity: Mapping[str, Any]) -> dict[str, Any]:
    """The content of `results.json`: rows and findings by table. Unfinished training runs are
    omitted."""
    seeds_of = {key: read_trainings(trainings) for key, trainings in made.trainings.items()}
    return {
        "scale": made.scale,
        "seeds": max(map(len, made.trainings.values()), default=0),
        "root": str(made.root),
        "overrides": list(made.overrides),
        "only": list(made.only),
        "tables": {
            table.name: _table(made, table, seeds_of)
            for table in made.tables
            # Perplexity needs no training runs and has its own section.
            if table.name != "perplexity"
        },
        "perplexity": {model: _beside_paper(measured) for model, measured in perplexity.items()},
        "versions": versions(),
    }


def _table(
    made: Reproduction, table: PaperTable, seeds_of: Mapping[str, list[SeedResult]]
) -> dict[str, Any]:
    by_model: dict[str, dict[tuple[str, str], list[SeedResult]]] = defaultdict(dict)
    for row in table.experiments:
        if seeds_of.get(row.id):
            by_model[row.model][row.environment, row.method] = seeds_of[row.id]
    judged = []
    # Claims compare methods that started from the same model, so judge each model separately.
    for model, of_model in by_model.items():
        for finding in table.findings:
            here = {
                method: part
                for (environment, method), part in of_model.items()
                if environment == finding.environment
            }
            judged.append({"model": model, **judge(finding, here)})
    return {
        "title": table.title,
        "rows": [
            _row(made, row, seeds_of.get(row.id, []))
            for row in table.experiments
            if row.id in made.trainings
        ],
        "findings": judged,
        "interquartile_mean": {
            model: interquartile_means(part) for model, part in by_model.items()
        },
    }


def _row(made: Reproduction, row: Experiment, parts: list[SeedResult]) -> dict[str, Any]:
    setting = SCALES[made.scale].settings[row.environment]
    return {
        "id": row.id,
        "model": row.model,
        "environment": row.environment,
        "method": row.method,
        "description": method(row.method).description,
        "preset": [setting.preset, *setting.overrides],
        "paper": row.paper,
        "seeds": len(parts),
        "before": rates(parts, "before"),
        "after": rates(parts, "after"),
        "each_seed": [rates([part], "after") for part in parts],
        "world_model": [dict(part.world_model) for part in parts],
        "curve": mean_curve(parts),
        "folders": [
            str(training.folder.relative_to(made.root)) for training in made.trainings[row.id]
        ],
        "command": command(made, row),
    }


def command(made: Reproduction, row: Experiment) -> str:
    """The command that reproduces this row."""
    table = next(table.name for table in made.tables if row in table.experiments)
    seeds = len(made.trainings[row.id])
    extra = "".join(f" '{override}'" for override in made.overrides)
    return f"spa bench paper {table} --scale {made.scale} --seeds {seeds} --only '{row.id}'{extra}"


def _beside_paper(measured: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for tag, texts in measured["tags"].items():
        for text, contexts in texts.items():
            for context, numbers in contexts.items():
                row = {
                    "tag": tag,
                    "text": text,
                    "context": context,
                    "paper": PERPLEXITY.get((tag, text)),
                }
                rows.append({**row, **numbers})
    return rows

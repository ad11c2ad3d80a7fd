"""`spa compare` for methods and settings, and `spa bench paper` for the paper's tables."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spa.commands.arguments import (
    CONFIG_HELP,
    add_settings,
    names,
    result_file,
    say,
    settings,
)
from spa.errors import ConfigError


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `spa compare`."""
    parser.add_argument("config", metavar="CONFIG", help=CONFIG_HELP)
    add_settings(parser)
    parser.add_argument(
        "--methods",
        type=names,
        default=[],
        metavar="A,B",
        help="methods (`spa config list methods`), or your own as module:name (default: compare.arms)",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=V1,V2",
        help="values of a setting; several --sweep give every combination",
    )
    parser.add_argument(
        "--method",
        default="spa",
        metavar="NAME",
        help="the method that a sweep trains (default: spa)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="full pipelines per method, self-play and SFT included",
    )
    parser.add_argument(
        "--controls",
        action="store_true",
        help="add vanilla in the world-model format and SPA with shuffled next states",
    )
    parser.add_argument(
        "--q-learning", action="store_true", help="add tabular Q-learning, without a language model"
    )
    _add_parallel(parser)
    parser.add_argument(
        "--from-scratch", action="store_true", help="archive changed work instead of refusing it"
    )
    parser.add_argument("--dry-run", action="store_true", help="list the stages and stop")


def compare(options: argparse.Namespace) -> int:
    """Run a comparison, print its table, and print what can be done with its folder."""
    from spa.api.runs import plan_comparison

    folder = options.output_dir
    options.output_dir = None
    overrides = settings(options)
    if options.from_scratch:
        overrides.append("trainer.resume_mode=disable")
    made = plan_comparison(
        options.config,
        methods=options.methods,
        sweep=options.sweep,
        seeds=options.seeds,
        controls=options.controls,
        method=options.method,
        output_dir=folder,
        overrides=overrides,
    )
    if options.dry_run:
        return say(made.grid.lines())
    from spa.experiments.compare import run_comparison
    from spa.experiments.tables import print_table

    print_table(run_comparison(made, parallel=options.parallel))
    lines = [
        *(_table_lines(made.trainings[made.reference]) if options.q_learning else ()),
        f"summary: {made.root / 'summary.json'}",
        f"report: spa report {made.root}",
        f"replay: spa view {made.root}",
    ]
    if not options.sweep:
        lr = made.cfg.actor_rollout_ref.actor.optim.lr
        sweep = f"actor_rollout_ref.actor.optim.lr={lr:g},{lr / 3:.1g}"
        lines.append(f"compare values of a setting: spa compare {options.config} --sweep {sweep}")
    return say(lines)


def _add_parallel(parser: argparse.ArgumentParser, default: int | None = None) -> None:
    shown = "compare.parallel" if default is None else str(default)
    text = f"CPU processes at a time (default: {shown}); GPUs: all of them"
    parser.add_argument("--parallel", type=int, default=default, metavar="N", help=text)


def _table_lines(trainings: Sequence[Any]) -> list[str]:
    """Tabular Q-learning after as many actions as each of these trainings has taken."""
    from spa.experiments.spent import q_learning, spent
    from spa.stages.q_learning import OTHER, SAME

    lines = []
    for seed, training in enumerate(trainings):
        steps = round(max(used.environment_steps for used in spent(training).values()))
        found = q_learning(training, steps, learn=True)
        lines.append(
            f"a table (Q-learning, seed {seed}): "
            + (
                f"{found[OTHER]:.1%} after {steps:,} actions in training puzzles; {found[SAME]:.1%} after "
                f"{found['tries']:,} tries of each reported puzzle itself, which no method may"
                if found
                else "none, as the environment lists no actions or cannot be copied"
            )
        )
    return lines


def paper_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `spa bench paper`."""
    parser.add_argument(
        "tables",
        nargs="+",
        metavar="TABLE",
        help="name of a table (--dry-run lists its runs), or all",
    )
    parser.add_argument(
        "--scale",
        default="tiny",
        choices=("tiny", "full"),
        help="tiny: two CPU cores and the bundled model; full: the paper's models on GPUs (default: tiny)",
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="trainings of each experiment (default: 3)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="experiments of this id, or with TEXT in it",
    )
    parser.add_argument(
        "--root", metavar="FOLDER", help="output folder (default: runs/reproduce-SCALE)"
    )
    parser.add_argument(
        "--page", metavar="FILE", help="the page (default: results.md in the output folder)"
    )
    parser.add_argument(
        "--notes", metavar="FILE", help="JSON: a claim, or claim (environment) -> a remark"
    )
    parser.add_argument(
        "--no-training",
        action="store_true",
        help="write results and page of what is finished, and stop",
    )
    _add_parallel(parser, 2)
    parser.add_argument("--dry-run", action="store_true", help="list the stages and stop")


def paper(options: argparse.Namespace) -> int:
    """Run the experiments of the paper's tables as one resumable grid, and write results and a
    page."""
    from spa.experiments import reproduce as recipe

    overrides = options.overrides
    root = Path(options.root or f"runs/reproduce-{options.scale}")
    plan = recipe.make_plan(
        options.tables,
        options.scale,
        root,
        seeds=options.seeds,
        only=options.only,
        overrides=overrides,
    )
    if options.dry_run:
        return say(_plan_lines(plan, options.parallel))
    notes = _notes(options.notes)
    page = result_file(Path(options.page) if options.page else root / "results.md")
    result_file(root / recipe.RESULTS)
    result = recipe.run_tables(
        plan, train=not options.no_training, parallel=options.parallel, page=page, notes=notes
    )
    verdicts = [
        f"{finding['verdict']}: {finding['text']} ({finding['environment']}). {finding.get('sentence', '')}".rstrip()
        for table in result["tables"].values()
        for finding in table["findings"]
    ]
    return say([*verdicts, f"results: {root / recipe.RESULTS}", f"page: {page}"])


def _plan_lines(plan: Any, parallel: int) -> list[str]:
    from spa.experiments.grid import free_devices
    from spa.experiments.page import hours_text
    from spa.experiments.reproduce import command

    lines = []
    for row in plan.experiments:
        paper = (
            ""
            if row.paper is None
            else f"  paper: Pass@1 {row.paper[0]:g}, Pass@8 {row.paper[1]:g}"
        )
        lines += [
            f"{row.id}  {len(plan.trainings[row.id])} seeds{paper}",
            f"    {command(plan, row)}",
        ]
    lines += [f"state perplexity of {model}" for model in plan.models]
    tasks = plan.grid.tasks
    missing = plan.grid.missing
    lines.append(f"{len(tasks)} stages, {len(tasks) - len(missing)} of them done:")
    lines += [f"    {line}" for line in plan.grid.lines()]
    lines.append(hours_text(plan.scale, plan.hours, len(free_devices(parallel))))
    return lines


def _notes(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        notes = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--notes {path}: cannot be read as JSON ({error})") from error
    if not isinstance(notes, dict):
        raise ConfigError(f"--notes {path}: expected an object of texts")
    return {str(key): str(value) for key, value in notes.items()}

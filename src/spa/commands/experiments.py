"""Experiments: `spa compare`, `spa try`, `spa ablate`, and `spa reproduce` for the paper's tables."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spa.commands.arguments import CONFIG_HELP, add_verbosity, apply_verbosity, result_file, say, split_overrides
from spa.errors import ConfigError


def compare(args: list[str]) -> int:
    """`spa compare CONFIG [--seeds N] [--controls]`."""
    parser = argparse.ArgumentParser(
        prog="spa compare", description="Methods side by side with the same number of PPO episodes."
    )
    parser.add_argument("config", metavar="CONFIG", help=CONFIG_HELP)
    parser.add_argument("--seeds", type=int, metavar="N", help="full pipelines per method (self-play and SFT included)")
    parser.add_argument(
        "--controls",
        action="store_true",
        help="add vanilla in the world-model format and SPA with shuffled states",
    )
    parser.add_argument(
        "--q-learning", action="store_true", help="one more line: tabular Q-learning, without a language model"
    )
    options, overrides = _parse(parser, args)
    from spa.experiments.compare import methods_compared
    from spa.experiments.methods import CONTROLS

    names = CONTROLS if options.controls else ()
    made = methods_compared(options.config, overrides, names=names, seeds=options.seeds)
    lr = made.cfg.actor_rollout_ref.actor.optim.lr
    values = f"actor_rollout_ref.actor.optim.lr={lr:g},{lr / 3:.1g}"
    more = [f"change one setting and compare: spa try {options.config} {values}"]
    return _compared(made, options, more, table=options.q_learning)


def try_values(args: list[str]) -> int:
    """`spa try CONFIG KEY=a,b [KEY=c,d] [--seeds N]`."""
    parser = argparse.ArgumentParser(
        prog="spa try",
        description="The recipe with several values of a key (of several keys: every combination), paired by puzzle "
        "with the first one. Only the stages that the keys change are run; the others are those of the run itself, or "
        "of its comparison, whose folder stays as it is.",
    )
    parser.add_argument("config", metavar="CONFIG", help=CONFIG_HELP)
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="trainings of each value")
    parser.add_argument("--method", default="spa", metavar="NAME", help="what is trained (`spa ablate --list`)")
    parser.add_argument("--root", metavar="FOLDER", help="where it goes (default: beside the run, RUN-try-KEY)")
    _add_parallel(parser)
    options, overrides = _parse(parser, args)
    from spa.experiments.compare import values_tried

    root = Path(options.root) if options.root else None
    made = values_tried(options.config, overrides, name=options.method, root=root, seeds=options.seeds)
    return _compared(made, options)


def ablate(args: list[str]) -> int:
    """`spa ablate NAME CONFIG`: a changed recipe beside the recipe itself."""
    parser = argparse.ArgumentParser(
        prog="spa ablate",
        description="Run the recipe with one thing changed, and the recipe itself beside it. Both share every stage "
        "that the change does not touch; what is finished is kept.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="see --list, or a method of your own as module:name")
    parser.add_argument("config", nargs="?", metavar="CONFIG", help=CONFIG_HELP)
    parser.add_argument("--list", action="store_true", help="all names with what they change")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="trainings of each")
    _add_parallel(parser)
    options, overrides = _parse(parser, args)
    if options.list:
        from spa.experiments.methods import METHODS

        return _list(METHODS)
    if options.name is None or options.config is None:
        raise ConfigError("usage: spa ablate NAME CONFIG [key=value ...]; `spa ablate --list` has the names")
    from spa.experiments.compare import ablation

    return _compared(ablation(options.name, options.config, overrides, seeds=options.seeds), options)


def _parse(parser: argparse.ArgumentParser, args: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options, and the overrides of the configuration."""
    parser.add_argument("--dry-run", action="store_true", help="list the stages and stop")
    add_verbosity(parser)
    words, overrides = split_overrides(args)
    options = parser.parse_args(words)
    apply_verbosity(options)
    return options, overrides


def _add_parallel(parser: argparse.ArgumentParser, default: int | None = None) -> None:
    said = "compare.parallel" if default is None else str(default)
    text = f"CPU processes at a time (default: {said}); GPUs: all of them"
    parser.add_argument("--parallel", type=int, default=default, metavar="N", help=text)


def _compared(made: Any, options: argparse.Namespace, more: Sequence[str] = (), *, table: bool = False) -> int:
    """Run a comparison, print its table, and say what can be done with its folder."""
    if options.dry_run:
        return say(made.grid.lines())
    from spa.experiments.compare import run_comparison
    from spa.experiments.tables import print_table

    print_table(run_comparison(made, parallel=getattr(options, "parallel", None)))
    lines = [
        *(_table_lines(made.trainings[made.reference]) if table else ()),
        f"summary: {made.root / 'summary.json'}",
        f"report: spa report {made.root}",
        f"replay: spa view {made.root}",
    ]
    return say([*lines, *more])


def _table_lines(trainings: Sequence[Any]) -> list[str]:
    """Tabular Q-learning after as many actions as each of these trainings has taken."""
    from spa.experiments.spent import q_learning, spent
    from spa.recipes.q_learning import OTHER, SAME

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


def reproduce(args: list[str]) -> int:
    """`spa reproduce TABLE ... --scale tiny|full`."""
    from spa.experiments.paper import NAMES

    parser = argparse.ArgumentParser(
        prog="spa reproduce",
        description="The paper's results as a resumable grid of trainings with one results file and one page. The tiny "
        "scale is for two CPU cores and the built-in model, the full scale for the paper's models and GPUs.",
    )
    parser.add_argument("tables", nargs="+", metavar="TABLE", help=f"{', '.join(NAMES)}, or all")
    parser.add_argument("--scale", default="tiny", choices=("tiny", "full"))
    parser.add_argument("--seeds", type=int, metavar="N", help="trainings of each experiment (default: 3)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="experiments of this id, or with TEXT in it"
    )
    parser.add_argument("--root", metavar="FOLDER", help="where everything goes (default: runs/reproduce-SCALE)")
    parser.add_argument("--page", metavar="FILE", help="where the page goes (default: results.md in that folder)")
    parser.add_argument("--notes", metavar="FILE", help="JSON: a claim, or claim (environment) -> a remark")
    parser.add_argument("--no-training", action="store_true", help="results and page of what is finished, and stop")
    _add_parallel(parser, 2)
    options, overrides = _parse(parser, args)
    from spa.experiments import reproduce as recipe

    root = Path(options.root or f"runs/reproduce-{options.scale}")
    plan = recipe.make_plan(
        options.tables, options.scale, root, seeds=options.seeds, only=options.only, overrides=overrides
    )
    if options.dry_run:
        return say(_plan_lines(plan, options.parallel))
    notes = _notes(options.notes)
    page = result_file(Path(options.page) if options.page else root / "results.md")
    result_file(root / recipe.RESULTS)
    result = recipe.run_tables(plan, train=not options.no_training, parallel=options.parallel, page=page, notes=notes)
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
        paper = "" if row.paper is None else f"  paper: Pass@1 {row.paper[0]:g}, Pass@8 {row.paper[1]:g}"
        lines += [f"{row.id}  {len(plan.trainings[row.id])} seeds{paper}", f"    {command(plan, row)}"]
    lines += [f"state perplexity of {model}" for model in plan.models]
    tasks, missing = plan.grid.tasks, plan.grid.missing
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


def _list(methods: Any) -> int:
    width = max(map(len, methods))
    lines = []
    for name, chosen in methods.items():
        changes = " ".join((*chosen.overrides, *chosen.world_model, *chosen.ppo)) or "-"
        lines += [f"{name:<{width}}  {chosen.description}", f"{'':<{width}}  {changes}"]
    return say(lines)

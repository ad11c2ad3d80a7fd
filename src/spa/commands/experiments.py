"""`spa ablate` and `spa reproduce`: methods side by side, and the paper's tables."""

import argparse
import json
from pathlib import Path
from typing import Any

from spa.commands.arguments import add_verbosity, apply_verbosity, result_file, say, split_overrides
from spa.errors import ConfigError


def ablate(args: list[str]) -> int:
    """`spa ablate NAME CONFIG`: a changed recipe beside the recipe itself."""
    parser = argparse.ArgumentParser(
        prog="spa ablate",
        description="Run the recipe with one thing changed, and the recipe itself beside it. Both share every stage "
        "that the change does not touch; what is finished is kept.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="see --list")
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="a shipped configuration or a YAML file")
    parser.add_argument("--list", action="store_true", help="all names with what they change")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="trainings of each")
    parser.add_argument("--parallel", type=int, default=2, metavar="N", help="CPU processes at a time")
    parser.add_argument("--dry-run", action="store_true", help="list the stages and stop")
    add_verbosity(parser)
    words, overrides = split_overrides(args)
    options = parser.parse_args(words)
    from spa.recipes import ablations

    if options.list:
        return _list(ablations.METHODS)
    if options.name is None or options.config is None:
        raise ConfigError("usage: spa ablate NAME CONFIG [key=value ...]; `spa ablate --list` has the names")
    from spa.recipes import ablate as recipe

    apply_verbosity(options)
    plan = recipe.make_plan(options.name, options.config, overrides, seeds=options.seeds)
    if options.dry_run:
        return say([f"{stage.folder}: {_state(stage)} ({stage.label})" for stage in plan.stages])
    result = recipe.run(plan, parallel=options.parallel)
    return say([*recipe.table(result), f"result: {plan.root / recipe.RESULTS}"])


def reproduce(args: list[str]) -> int:
    """`spa reproduce TABLE ... --scale tiny|full`."""
    from spa.recipes.paper_tables import NAMES

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
    parser.add_argument(
        "--parallel", type=int, default=2, metavar="N", help="CPU processes at a time; GPUs: all of them"
    )
    parser.add_argument("--dry-run", action="store_true", help="list experiments, stages and hours, and stop")
    parser.add_argument("--no-training", action="store_true", help="results and page of what is finished, and stop")
    add_verbosity(parser)
    words, overrides = split_overrides(args)
    options = parser.parse_args(words)
    from spa.recipes import reproduce as recipe

    apply_verbosity(options)
    root = Path(options.root or f"runs/reproduce-{options.scale}")
    plan = recipe.make_plan(
        options.tables, options.scale, root, seeds=options.seeds, only=options.only, overrides=overrides
    )
    if options.dry_run:
        return say(_plan_lines(plan, options.parallel))
    notes = _notes(options.notes)
    page = result_file(Path(options.page) if options.page else root / "results.md")
    result_file(root / recipe.RESULTS)
    result = recipe.run(plan, train=not options.no_training, parallel=options.parallel, page=page, notes=notes)
    verdicts = [
        f"{finding['verdict']}: {finding['text']} ({finding['environment']}). {finding.get('sentence', '')}".rstrip()
        for table in result["tables"].values()
        for finding in table["findings"]
    ]
    return say([*verdicts, f"results: {root / recipe.RESULTS}", f"page: {page}"])


def _plan_lines(plan: Any, parallel: int) -> list[str]:
    from spa.recipes.grid import free_devices
    from spa.recipes.reproduce import command
    from spa.recipes.results_page import hours_text

    lines = []
    for row in plan.experiments:
        paper = "" if row.paper is None else f"  paper: Pass@1 {row.paper[0]:g}, Pass@8 {row.paper[1]:g}"
        lines += [f"{row.id}  {len(plan.trainings[row.id])} seeds{paper}", f"    {command(plan, row)}"]
    lines += [f"state perplexity of {model}" for model in plan.models]
    stages = plan.stages
    done = sum(stage.done for stage in stages)
    lines.append(f"{len(stages)} stages, {done} of them done:")
    lines += [f"    {stage.folder}: {_state(stage)} ({stage.label})" for stage in stages]
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


def _state(stage: Any) -> str:
    return "done" if stage.done else "to do"


def _list(methods: Any) -> int:
    width = max(map(len, methods))
    lines = []
    for name, chosen in methods.items():
        changes = " ".join((*chosen.overrides, *chosen.world_model, *chosen.ppo)) or "-"
        lines += [f"{name:<{width}}  {chosen.description}", f"{'':<{width}}  {changes}"]
    return say(lines)

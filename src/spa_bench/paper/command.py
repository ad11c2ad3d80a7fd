"""`spa bench paper`: reproduce the paper's tables."""

import argparse
import json
from pathlib import Path
from typing import Any

from spa.commands.arguments import add_parallel, result_file, say
from spa.errors import ConfigError


def paper_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa bench paper` to `parser`."""
    parser.add_argument(
        "tables",
        nargs="+",
        metavar="TABLE",
        help="name of a table of the paper, or `all`; with --dry-run, `spa` lists the runs of the table",
    )
    parser.add_argument(
        "--scale",
        default="tiny",
        choices=("tiny", "full"),
        help="`tiny` uses two CPU cores and the bundled model, `full` uses the paper's models on GPUs (default: tiny)",
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="training seeds per experiment (default: 3)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TEXT",
        help="run only the experiments whose id is TEXT or contains TEXT (repeatable)",
    )
    parser.add_argument(
        "--root", metavar="FOLDER", help="output folder (default: runs/reproduce-SCALE)"
    )
    parser.add_argument(
        "--page",
        metavar="FILE",
        help="Markdown file of the results (default: results.md in the output folder)",
    )
    parser.add_argument(
        "--notes",
        metavar="FILE",
        help="JSON file of remarks for the page: an object from `claim` or `claim (environment)` to a remark",
    )
    parser.add_argument(
        "--no-training",
        action="store_true",
        help="write the results of the finished trainings, and train nothing",
    )
    add_parallel(parser, 2)
    parser.add_argument("--dry-run", action="store_true", help="list the stages, and train nothing")


def paper(options: argparse.Namespace) -> int:
    """Run the experiments of the paper's tables as one resumable grid, and write the results and a
    page. Returns the exit status."""
    from spa_bench.paper import reproduce as recipe

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
    # Check both files before the grid starts, so that an unwritable folder cannot end hours of
    # training.
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
    return say([*verdicts, f"Results are in {root / recipe.RESULTS} and {page}."])


def _plan_lines(plan: Any, parallel: int) -> list[str]:
    from spa_bench.paper.hours import assumed_card, known_shape
    from spa_bench.paper.paper import SCALES
    from spa_bench.paper.reproduce import command

    lines = []
    for row in plan.experiments:
        paper = (
            ""
            if row.paper is None
            else f"  result in the paper: Pass@1 {row.paper[0]:g}, Pass@8 {row.paper[1]:g}"
        )
        lines += [
            f"{row.id}  {len(plan.trainings[row.id])} seeds{paper}",
            f"    {command(plan, row)}",
        ]
    lines += [f"perplexity of state descriptions under {model}" for model in plan.models]
    tasks = plan.grid.tasks
    missing = plan.grid.missing
    lines.append(f"{len(tasks)} stages, {len(tasks) - len(missing)} of them done:")
    lines += [f"    {line}" for line in plan.grid.lines()]
    scale = SCALES[plan.scale]
    devices = plan.grid.devices(parallel)
    source = (
        f"measured on one {scale.device} each"
        if scale.hours
        else (f"estimate, one {assumed_card()} with vLLM each")
    )
    lines.append(
        f"The stages take about {plan.hours(len(devices)):.1f} hours with {len(devices)} at a time ({source}). "
        "The stages of a training run one after the other."
    )
    models = {task.config.model_path for task in missing}
    unknown = [] if scale.hours else [name for name in sorted(models) if not known_shape(name)]
    if unknown:
        lines.append(f"Without {', '.join(unknown)}, whose size is not known here.")
    if scale.device == "GPU" and "cpu" in devices:
        lines.append(
            f"This machine has no GPU. The estimate assumes {len(devices)} of them (--parallel). For "
            "several GPUs per training, run: spa doctor --fit CONFIG --gpus 4"
        )
    return lines


def _notes(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        notes = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--notes {path}: the file is missing or is not valid JSON ({error}). Give a JSON file of remarks."
        ) from error
    if not isinstance(notes, dict):
        raise ConfigError(
            f"--notes {path}: the file does not contain a JSON object. Give a JSON object of remarks by claim."
        )
    return {str(key): str(value) for key, value in notes.items()}

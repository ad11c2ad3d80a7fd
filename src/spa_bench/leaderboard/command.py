"""`spa bench methods`: train methods and rank them on a leaderboard."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from spa.commands.arguments import add_parallel, result_file, say, whole_number
from spa.errors import ConfigError


def methods_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa bench methods` to `parser`."""
    parser.add_argument(
        "methods",
        nargs="*",
        metavar="METHOD",
        help="methods to rank (default: a selection); `spa config list methods` lists all methods",
    )
    parser.add_argument(
        "--scale",
        default="tiny",
        choices=("tiny", "smol", "full"),
        help="size of the models and boards (default: tiny)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="BOARD",
        help="train on this board alone (repeatable; default: all boards of the scale)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=3,
        metavar="N",
        help="training seeds per method and board (default: 3)",
    )
    parser.add_argument(
        "--controls",
        type=whole_number,
        default=3,
        metavar="N",
        help="also train the shuffled controls of the N best methods (default: 3)",
    )
    parser.add_argument(
        "--root", metavar="FOLDER", help="output folder (default: runs/bench-SCALE)"
    )
    parser.add_argument(
        "--page",
        metavar="FILE",
        help="Markdown file of the leaderboard, with an HTML file next to it (default: leaderboard.md in --root)",
    )
    parser.add_argument(
        "--no-training",
        action="store_true",
        help="write the leaderboard of the finished trainings, and train nothing",
    )
    add_parallel(parser, 2)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="list the stages with an estimate of the time, and train nothing",
    )


def methods(options: argparse.Namespace) -> int:
    """Train methods x boards x seeds as one resumable grid, and write the leaderboard. Raises
    ConfigError for unknown methods, boards or overrides."""
    from spa.run.files import write_atomic
    from spa_bench.leaderboard import bench, tables

    root = Path(options.root or f"runs/bench-{options.scale}")
    made = bench.make_bench(
        options.methods,
        options.scale,
        root,
        boards=options.env,
        seeds=options.seeds,
        overrides=options.overrides,
    )
    if options.dry_run:
        return say(_plan_lines(made, options))
    page = result_file(Path(options.page) if options.page else root / "leaderboard.md")
    if page.suffix == ".html":
        raise ConfigError(
            f"--page {page}: give the name of the Markdown page; the HTML page is next to it."
        )
    result_file(root / bench.RESULTS)
    result = bench.run_bench(
        made, controls=options.controls, train=not options.no_training, parallel=options.parallel
    )
    command = _command(options)
    write_atomic(page, [tables.markdown(result, command)])
    write_atomic(page.with_suffix(".html"), [tables.html(result, command)])
    order = [f"{place}. {line}" for place, line in enumerate(tables.ranking(result), start=1)]
    return say(
        [
            *order,
            f"Results are in {root / bench.RESULTS}",
            f"The leaderboard is in {page} and {page.with_suffix('.html').name}.",
        ]
    )


def _command(options: argparse.Namespace) -> str:
    """The command that reproduces the page."""
    # Always write scale and numbers, because later versions may change their defaults. Omit options
    # that are None or empty.
    words = ["spa", "bench", "methods", *options.methods]
    for name in ("scale", "seeds", "controls", "root", "page", "parallel"):
        if (value := getattr(options, name)) is not None:
            words += [f"--{name}", str(value)]
    words += [word for board in options.env for word in ("--env", board)]
    words += ["--no-training"] if options.no_training else []
    return shlex.join([*words, *options.overrides])


def _plan_lines(made: Any, options: argparse.Namespace) -> list[str]:
    tasks = made.grid.tasks
    missing = made.grid.missing
    devices = len(made.grid.devices(options.parallel))
    lines = [
        f"{board}: {', '.join(name for place, name in made.trainings if place == board)}"
        for board in made.boards
    ]
    lines += [f"    {line}" for line in made.grid.lines()]
    lines.append(
        f"{len(tasks)} stages, {len(tasks) - len(missing)} of them done, {len(made.grid.links)} shared by methods."
    )
    lines.append(
        f"The stages take about {made.hours(1):.1f} device hours, which is {made.hours(devices):.1f} "
        f"hours on {devices} device{'s' if devices > 1 else ''}. The shuffled controls of the best {options.controls} "
        "methods take additional time."
    )
    return lines

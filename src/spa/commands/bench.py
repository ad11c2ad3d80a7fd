"""`spa bench-methods`: the leaderboard of methods."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from spa.commands.arguments import add_verbosity, apply_verbosity, result_file, say, split_overrides
from spa.errors import ConfigError


def main(args: list[str]) -> int:
    """`spa bench-methods [METHOD ...] --scale tiny|smol|full`."""
    options, overrides = _parse(args)
    if options.controls < 0:
        raise ConfigError(f"--controls is {options.controls}; it must be at least 0")
    from spa.experiments import bench, leaderboard
    from spa.run.files import write_atomic

    root = Path(options.root or f"runs/bench-{options.scale}")
    made = bench.make_bench(
        options.methods, options.scale, root, boards=options.env, seeds=options.seeds, overrides=overrides
    )
    if options.dry_run:
        return say(_plan_lines(made, options))
    page = result_file(Path(options.page) if options.page else root / "leaderboard.md")
    result_file(root / bench.RESULTS)
    result = bench.run_bench(made, controls=options.controls, train=not options.no_training, parallel=options.parallel)
    command = shlex.join(["spa", "bench-methods", *args])
    write_atomic(page, [leaderboard.markdown(result, command)])
    write_atomic(page.with_suffix(".html"), [leaderboard.html(result, command)])
    order = [f"{place}. {line}" for place, line in enumerate(leaderboard.ranking(result), start=1)]
    return say([*order, f"results: {root / bench.RESULTS}", f"page: {page} and {page.with_suffix('.html').name}"])


def _parse(args: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="spa bench-methods",
        description="Methods x boards x seeds as one resumable grid: a leaderboard at equal environment steps and at "
        "equal tokens, with the optimum of each board and the shuffled control of the best methods beside them.",
    )
    parser.add_argument(
        "methods",
        nargs="*",
        metavar="METHOD",
        help="`spa ablate --list` has them; none: a choice of the field (`--dry-run`)",
    )
    parser.add_argument("--scale", default="tiny", choices=("tiny", "smol", "full"))
    parser.add_argument("--env", action="append", default=[], metavar="BOARD", help="only this board of the scale")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="trainings of each method on each board")
    parser.add_argument(
        "--controls", type=int, default=3, metavar="N", help="run the shuffled control of this many of the best methods"
    )
    parser.add_argument("--root", metavar="FOLDER", help="where everything goes (default: runs/bench-SCALE)")
    parser.add_argument("--page", metavar="FILE", help="the page in Markdown, HTML beside it (default: in that folder)")
    parser.add_argument("--no-training", action="store_true", help="results and page of what is finished, and stop")
    parser.add_argument("--parallel", type=int, default=2, metavar="N", help="CPU processes at a time; GPUs: all")
    parser.add_argument("--dry-run", action="store_true", help="list the stages with an estimate, and stop")
    add_verbosity(parser)
    words, overrides = split_overrides(args)
    options = parser.parse_args(words)
    apply_verbosity(options)
    return options, overrides


def _plan_lines(made: Any, options: argparse.Namespace) -> list[str]:
    from spa.experiments.grid import free_devices

    tasks, missing, devices = made.grid.tasks, made.grid.missing, len(free_devices(options.parallel))
    lines = [f"{board}: {', '.join(name for place, name in made.trainings if place == board)}" for board in made.boards]
    lines += [f"    {line}" for line in made.grid.lines()]
    lines.append(f"{len(tasks)} stages, {len(tasks) - len(missing)} of them done, {len(made.grid.links)} shared.")
    lines.append(
        f"about {made.hours:.1f} hours of one device, {made.hours / devices:.1f} on {devices}; the shuffled controls "
        f"of the best {options.controls} are planned when the others are done."
    )
    return lines

"""`spa compare`: train and compare methods, or the values of settings."""

import argparse

from spa.commands.arguments import (
    CONFIG_HELP,
    add_parallel,
    add_settings,
    names,
    say,
    settings,
)


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa compare`."""
    parser.add_argument("config", metavar="CONFIG", help=CONFIG_HELP)
    add_settings(parser)
    parser.add_argument(
        "--methods",
        type=names,
        default=[],
        metavar="A,B",
        help="methods to compare, separated by commas: names from `spa config list methods`, or your own "
        "as module:name (default: compare.arms)",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=V1,V2",
        help="setting to vary and its values; several --sweep options train every combination",
    )
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="method that a sweep trains (default: spa)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="number of seeds; each method runs its complete pipeline once per seed",
    )
    parser.add_argument(
        "--controls",
        action="store_true",
        help="add two controls: vanilla_wm and spa_shuffled, or those of written search",
    )
    parser.add_argument(
        "--q-learning",
        action="store_true",
        help="also run tabular Q-learning, a baseline without a language model",
    )
    add_parallel(parser)
    parser.add_argument(
        "--from-scratch",
        action="store_true",
        help="archive work that was finished with other settings, and train again",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the stages that would run, and exit"
    )


def compare(options: argparse.Namespace) -> int:
    """Run a comparison, print its table, and suggest further commands. Returns the exit status."""
    from spa_sweeps.api import plan_comparison

    # The folder is a separate argument: with --methods or --sweep, an override of `trainer.run_dir`
    # would put the comparison next to that folder.
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
        from spa.recipes.builtin_games import warn_of_unknown_games

        warn_of_unknown_games(task.config for task in made.grid.missing)
        return say(made.grid.lines())
    from spa.plugins import load_plugin
    from spa_sweeps.compare import run_comparison
    from spa_sweeps.tables import print_table

    print_table(run_comparison(made, parallel=options.parallel))
    lines = [
        *(
            load_plugin("baselines", "q_learning")(made.trainings[made.reference])
            if options.q_learning
            else ()
        ),
        f"summary: {made.root / 'summary.json'}",
        f"to write a report, run: spa report {made.root}",
        f"to view the episodes, run: spa view {made.root}",
    ]
    if not options.sweep:
        lr = made.cfg.actor_rollout_ref.actor.optim.lr
        # The suggested value is rounded to one digit, so that it is short to type.
        sweep = f"actor_rollout_ref.actor.optim.lr={lr:g},{lr / 3:.1g}"
        lines.append(
            f"to compare values of a setting, run: spa compare {options.config} --sweep {sweep}"
        )
    return say(lines)

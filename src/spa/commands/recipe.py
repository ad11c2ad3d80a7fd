"""`spa run`: run the training stages."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spa.commands.arguments import (
    CONFIG_HELP,
    add_settings,
    names,
    say,
    settings,
    whole_number,
)
from spa.errors import ConfigError
from spa.plugins import load_plugin
from spa.run.console import write_out

if TYPE_CHECKING:  # this import loads the configuration, which `--help` does not need
    from spa.launch.job import Job

# Values of the argument GENERATE_DATA. In the original code, it is the third argument, as in
# `CONFIG last True`.
_TRUTH = {"true": True, "false": False}


def run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa run` to `parser`. The positional arguments match the original
    code's script."""
    parser.add_argument("config", metavar="CONFIG", help=CONFIG_HELP)
    parser.add_argument(
        "ckpt",
        nargs="?",
        default="last",
        metavar="CKPT",
        help="SFT checkpoint from which PPO alone starts: last, or a step number",
    )
    parser.add_argument(
        "generate_data",
        nargs="?",
        metavar="GENERATE_DATA",
        help="True runs all stages from scratch, and False runs PPO alone from CKPT (default: run the "
        "missing stages)",
    )
    add_settings(parser)
    parser.add_argument(
        "--seed",
        type=whole_number,
        default=0,
        metavar="N",
        help="index of this training, from 0; all random seeds depend on the index",
    )
    parser.add_argument(
        "--stages",
        type=names,
        metavar="A,B",
        help="consecutive stages of selfplay,sft,ppo (default: all); with ppo alone, PPO starts from "
        "model_path",
    )
    parser.add_argument(
        "--method",
        default="spa",
        metavar="NAME",
        help="method to train. spa runs all stages. vanilla (base format), vanilla_grid (grid only), "
        "state_estimation (grid and coordinates) and vanilla_wm (world-model format) run PPO alone",
    )
    parser.add_argument(
        "--from-scratch", action="store_true", help="archive earlier work and start from scratch"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check the configuration and the files, print memory, hours, disk and the command, and "
        "exit without training",
    )


def run(options: argparse.Namespace) -> int:
    """Train the requested stages, and print the path of the result. Raises SpaError for errors that
    the user can fix."""
    from spa.api.runs import configuration, plan_training

    stages, ckpt, from_scratch = _wanted(options)
    cfg = configuration(
        options.config,
        None,
        settings(options),
        stages=stages,
        method=options.method,
        seed=options.seed,
    )
    cfg, jobs = plan_training(
        cfg, stages, method=options.method, ckpt=ckpt, from_scratch=from_scratch
    )
    if options.dry_run:
        return _dry_run(options, cfg, stages, ckpt)
    from spa.launch.start import launch

    # The result of the last job is what the user asked for.
    return _done(cfg, jobs, launch(cfg, *jobs))


def _wanted(options: argparse.Namespace) -> "tuple[tuple[Any, ...], str | None, bool]":
    """Return the stages to run, the SFT checkpoint from which PPO alone starts (None: no
    checkpoint), and whether to start from scratch. Raises ConfigError for arguments that contradict
    each other."""
    from spa.api.runs import STAGES

    wanted = options.generate_data
    if wanted is not None and wanted.lower() not in _TRUTH:
        raise ConfigError(
            f"GENERATE_DATA is {wanted!r}; use True (all stages from scratch) or False (PPO alone)"
        )
    # Both arguments choose the stages and could contradict each other, so only one of them is
    # allowed.
    if wanted is not None and options.stages is not None:
        raise ConfigError(
            "GENERATE_DATA and --stages both choose the stages; give only one of these arguments"
        )
    if options.ckpt != "last" and not options.ckpt.isdecimal():
        raise ConfigError(f"CKPT is {options.ckpt!r}; use last or a step number")
    # `False` means PPO alone, from a checkpoint that `find_sft_checkpoint` finds.
    alone = wanted is not None and not _TRUTH[wanted.lower()]
    # In all other cases, CKPT would have no effect: PPO starts from the checkpoint that SFT is
    # about to write, or from `model_path`.
    if options.ckpt != "last" and not alone:
        raise ConfigError(
            f"CKPT is {options.ckpt}, but PPO after SFT starts from the last SFT checkpoint. To run PPO "
            f"alone from step {options.ckpt}: spa run {options.config} {options.ckpt} False"
        )
    if alone:
        return ("ppo",), options.ckpt, options.from_scratch
    # The other methods of this command run PPO from the base model and have no earlier stage.
    stages = tuple(options.stages or (STAGES if options.method == "spa" else ("ppo",)))
    return stages, None, options.from_scratch or wanted is not None


def _dry_run(
    options: argparse.Namespace, cfg: Any, stages: tuple[Any, ...], ckpt: str | None
) -> int:
    """Join the ranks, and call `_report` on the main rank only. Returns the exit status."""
    from spa.distributed.world import joined

    with joined(cfg.trainer.device, cfg.trainer.rank_timeout_s) as world:
        return _report(options, cfg, stages, ckpt) if world.is_main else 0


def _report(
    options: argparse.Namespace, cfg: Any, stages: tuple[Any, ...], ckpt: str | None
) -> int:
    """Run all checks that need no training, and print the folders, the estimates and the command to
    run. Returns the exit status 0; raises SpaError if a check fails."""
    from spa.recipes.builtin_games import warn_of_unknown_games
    from spa.recipes.pipeline import find_sft_checkpoint, stage_folders
    from spa.recipes.preflight import preflight

    data, sft_folder, ppo_folder = stage_folders(cfg)
    model = cfg.model_path if ckpt is None else str(find_sft_checkpoint(cfg, sft_folder, ckpt))
    preflight(cfg, stages, model)
    warn_of_unknown_games([cfg])
    folders = dict(
        zip(("selfplay", "sft", "ppo"), map(str, (data, sft_folder, ppo_folder)), strict=True)
    )
    used = [folders[stage] for stage in stages]
    where = " and ".join([", ".join(used[:-1]), used[-1]] if used[:-1] else used)
    write_out(f"configuration {options.config} is valid; {options.method} would run in {where}\n\n")
    typed = [word for word in options.typed if word != "--dry-run"]
    return say([*load_plugin("estimates", "this_machine")(cfg, model, typed, stages)])


def _done(cfg: Any, jobs: "list[Job]", result: Path | None) -> int:
    """Print the path of the last job's result and the number of failed episodes, on the main rank
    only. Returns the exit status 0."""
    from spa.launch.job import lost_episodes

    # Ranks other than the main one return None and print nothing.
    if result is None:
        return 0
    counts = [lost_episodes(cfg, job) for job in jobs]
    lost = sum(failed for failed, _ in counts)
    note = (
        f" {lost} of {sum(played for _, played in counts)} episodes failed. The files in "
        "trajectories/ give the reasons."
    )
    return say([f"The result is in {result}.{note if lost else ''}"])

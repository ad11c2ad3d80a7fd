"""Commands that run the recipe: run, generate, sft, ppo, baseline, pretrain-tiny."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spa.commands.arguments import CONFIG_HELP, add_verbosity, apply_verbosity, say, split_overrides
from spa.errors import ConfigError

if TYPE_CHECKING:  # imports the configuration, which `--help` has no use for
    from spa.config.check import Stage
    from spa.launch.job import Job, JobName

_TRUTH = {"true": True, "false": False}


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"spa {name}", description=description)
    parser.add_argument("config", metavar="CONFIG", help=CONFIG_HELP)
    return parser


def _finish(
    parser: argparse.ArgumentParser, args: list[str], stages: "tuple[Stage, ...]"
) -> tuple[argparse.Namespace, Any]:
    """Parse what is not an override, then load the configuration with the overrides, for what is to run."""
    add_verbosity(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything that can be checked without training, and stop"
    )
    words, overrides = split_overrides(args)
    options = parser.parse_args(words)
    options.overrides = overrides
    apply_verbosity(options)
    from spa.config.load import load_config

    return options, load_config(options.config, overrides, stages=stages)


def _dry_run(
    options: argparse.Namespace, cfg: Any, stages: "tuple[Stage, ...]", where: str = "", model: str = ""
) -> int:
    """Check everything that can be checked without work, and say so."""
    from spa.recipes.preflight import preflight

    preflight(cfg, stages, model or cfg.model_path)
    return say([f"configuration {options.config} is valid{where}"])


def _done(cfg: Any, job: "Job", result: Path | None) -> int:
    """Say where the result of a job is, on the rank that has it."""
    from spa.launch.job import lost_episodes

    if result is None:
        return 0
    lost, episodes = lost_episodes(cfg, job)
    told = f"; {lost} of {episodes} episodes were lost to faults, their reasons are in trajectories/" if lost else ""
    return say([f"done: {result}{told}"])


def run(args: list[str]) -> int:
    """`spa run CONFIG [CKPT=last] [GENERATE_DATA]` with the original's meaning."""
    parser = _parser("run", "Run the recipe. Without GENERATE_DATA, stages that are missing are run or resumed.")
    parser.add_argument(
        "ckpt", nargs="?", default="last", metavar="CKPT", help="SFT checkpoint of PPO alone: last or a step"
    )
    parser.add_argument(
        "generate_data", nargs="?", metavar="GENERATE_DATA", help="True: all three stages anew; False: PPO only"
    )
    options, cfg = _finish(parser, args, ("selfplay", "sft", "ppo"))
    wanted = options.generate_data
    if wanted is not None and wanted.lower() not in _TRUTH:
        raise ConfigError(f"GENERATE_DATA is {wanted!r}; use True (all three stages) or False (PPO only)")
    alone = wanted is not None and not _TRUTH[wanted.lower()]
    if options.ckpt != "last" and not options.ckpt.isdecimal():
        raise ConfigError(f"CKPT is {options.ckpt!r}; use last or a step number")
    if options.ckpt != "last" and not alone:
        raise ConfigError(
            f"CKPT is {options.ckpt}, but PPO after the other stages starts from their last checkpoint. For PPO alone, "
            f"from that step: spa run {options.config} {options.ckpt} False"
        )
    from spa.experiments.methods import of_comparison
    from spa.launch.job import Job
    from spa.launch.start import launch

    cfg = of_comparison(cfg)
    if options.dry_run:
        from spa.recipes.pipeline import find_sft_checkpoint, stage_folders

        data, sft_folder, ppo_folder = stage_folders(cfg)
        where = f"; it would run in {data}, {sft_folder} and {ppo_folder}"
        if not alone:
            return _dry_run(options, cfg, ("selfplay", "sft", "ppo"), where)
        return _dry_run(options, cfg, ("ppo",), where, str(find_sft_checkpoint(cfg, sft_folder, options.ckpt)))
    job = Job(stage="run", ckpt=options.ckpt, generate_data=None if wanted is None else _TRUTH[wanted.lower()])
    return _done(cfg, job, launch(cfg, job))


def _stage(description: str, name: "JobName", stage: "Stage", args: list[str]) -> int:
    """`spa generate CONFIG`, `spa sft CONFIG` and `spa ppo CONFIG`: one stage."""
    options, cfg = _finish(_parser(name, description), args, (stage,))
    if options.dry_run:
        return _dry_run(options, cfg, (stage,))
    from spa.launch.job import Job
    from spa.launch.start import launch

    job = Job(stage=name)
    return _done(cfg, job, launch(cfg, job))


generate = partial(_stage, "Stage 1: self-play, then data with the true states.", "generate", "selfplay")
sft = partial(_stage, "Stage 2: world-model fine-tuning.", "sft", "sft")
ppo = partial(_stage, "Stage 3: multi-turn PPO from model_path.", "ppo", "ppo")


def baseline(args: list[str]) -> int:
    """`spa baseline CONFIG [vanilla|state_estimation]`."""
    parser = _parser("baseline", "PPO from the base model, without stages 1 and 2.")
    parser.add_argument(
        "method",
        nargs="?",
        default="vanilla",
        metavar="METHOD",
        help="vanilla: base format, the configuration's state text; state_estimation: drawing and coordinates; "
        "vanilla_grid: drawing only; vanilla_wm: world-model format",
    )
    options, _ = _finish(parser, args, ("ppo",))
    from spa.experiments.methods import baseline_config
    from spa.launch.job import Job
    from spa.launch.start import launch

    arm = baseline_config(options.config, options.overrides, options.method)
    if options.dry_run:
        where = f"; {options.method} would run in {arm.trainer.default_local_dir}"
        return _dry_run(options, arm, ("ppo",), where)
    job = Job(stage="ppo")
    return _done(arm, job, launch(arm, job))


def pretrain_tiny(args: list[str]) -> int:
    """`spa pretrain-tiny [FOLDER] [--seed N] [--steps N]`."""
    parser = argparse.ArgumentParser(prog="spa pretrain-tiny", description="Train the built-in base model anew.")
    parser.add_argument(
        "folder", nargs="?", default="runs/pretrained-tiny", help="where it goes (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="default: as many as the shipped model was trained")
    add_verbosity(parser)
    options = parser.parse_args(args)
    apply_verbosity(options)
    if options.steps is not None and options.steps < 1:
        raise ConfigError(f"--steps is {options.steps}; it must be at least 1")
    from spa.recipes.pretrain_tiny import STEPS
    from spa.recipes.pretrain_tiny import pretrain_tiny as recipe

    return say([f"done: {recipe(Path(options.folder), seed=options.seed, steps=options.steps or STEPS)}"])

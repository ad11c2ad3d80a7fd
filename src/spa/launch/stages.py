"""What a launcher starts: one command of the recipe, the same on every rank."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spa.config.schema import Config
from spa.distributed.world import joined
from spa.recipes import pipeline
from spa.tracking.console import set_verbosity


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A stage, or all of them (`run`, with the checkpoint and the choice of the command line)."""

    stage: Literal["run", "generate", "sft", "ppo"]
    ckpt: str = "last"
    generate_data: bool | None = None


def launch(cfg: Config, job: Job) -> Path | None:
    """Do a job on the ranks that were asked for, by torchrun or by `launcher: ray`. Returns its result on rank 0, where
    there is somebody to tell."""
    if cfg.launcher == "ray":
        from spa.launch.ray_train import launch_on_ray

        return launch_on_ray(cfg, job)
    with joined(cfg.trainer.device, cfg.trainer.rank_timeout_s) as world:
        if not world.is_main:
            set_verbosity(quiet=True)
        result = perform(cfg, job)
    return result if world.is_main else None


def perform(cfg: Config, job: Job) -> Path:
    """Do a job on this rank."""
    match job.stage:
        case "run":
            return pipeline.run(cfg, ckpt=job.ckpt, generate_data=job.generate_data)
        case "generate":
            return pipeline.selfplay_stage(cfg)
        case "sft":
            return pipeline.sft_stage(cfg)
        case "ppo":
            return pipeline.ppo_stage(cfg)

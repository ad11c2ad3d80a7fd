"""What a launcher starts: one command of the recipe, the same on every rank."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spa.config.check import Stage
from spa.config.schema import Config
from spa.distributed.world import current_world, joined
from spa.errors import TrainingError
from spa.models.precision import precision_of, with_precision
from spa.recipes import pipeline
from spa.recipes.preflight import preflight
from spa.tracking.console import set_verbosity
from spa.tracking.recorder import read_metrics


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
    folders = pipeline.stage_folders(cfg)
    cfg = with_precision(cfg, current_world().broadcast(lambda: precision_of(cfg, folders)))
    if missing := missing_stages(cfg, job):
        begun = job.stage == "run" and missing == ["ppo"]
        preflight(cfg, missing, None if begun else cfg.model_path, thorough=False)
    try:
        match job.stage:
            case "run":
                return pipeline.run(cfg, ckpt=job.ckpt, generate_data=job.generate_data)
            case "generate":
                return pipeline.selfplay_stage(cfg)
            case "sft":
                return pipeline.sft_stage(cfg)
            case "ppo":
                return pipeline.ppo_stage(cfg)
    except (SystemExit, GeneratorExit) as error:  # a template, tracker or function of the user's: it is no success
        raise TrainingError(
            f"code that is not spa's ended the run by {type(error).__name__}({error}); `spa --debug` shows where. The "
            "same command goes on from the last checkpoint."
        ) from error


def lost_episodes(cfg: Config, job: Job) -> tuple[int, int]:
    """How many episodes of a job's stages were lost to faults, and how many there were, by their metrics."""
    folders = dict(zip(("generate", "sft", "ppo"), pipeline.stage_folders(cfg), strict=True))
    lost = played = 0.0
    for folder in folders.values() if job.stage == "run" else [folders[job.stage]]:
        for line in read_metrics(folder / "metrics.jsonl"):
            lost += sum(value for key, value in line.items() if key.endswith("/errors"))
            played += sum(value for key, value in line.items() if key.endswith("/episodes"))
    return int(lost), int(lost + played)


def missing_stages(cfg: Config, job: Job) -> list[Stage]:
    """The stages that a job has to do, in order."""
    if job.stage != "run":
        return ["selfplay" if job.stage == "generate" else job.stage]
    if job.generate_data is False:
        return []  # from whatever checkpoint it finds, which it looks at
    names: list[Stage] = ["selfplay", "sft", "ppo"]
    found = [pipeline.result_of(folder) for folder in pipeline.stage_folders(cfg)]
    anew = job.generate_data is True
    return [name for name, result in zip(names, found, strict=True) if anew or result is None]

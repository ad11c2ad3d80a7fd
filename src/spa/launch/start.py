"""Starting a job on the ranks that were asked for."""

from pathlib import Path

from spa.config.schema import Config
from spa.distributed.world import joined
from spa.launch.job import Job, prepared
from spa.run.console import set_verbosity


def launch(cfg: Config, job: Job) -> Path | None:
    """Do a job on the ranks that were asked for, by torchrun or by `launcher: ray`. Returns its
    result on rank 0, where there is somebody to tell."""
    if cfg.launcher == "ray":
        from spa.launch.ray_train import launch_on_ray

        return launch_on_ray(cfg, job)
    with joined(cfg.trainer.device, cfg.trainer.rank_timeout_s) as world:
        # The main rank logs for all; the others only warn.
        if not world.is_main:
            set_verbosity(quiet=True)
        with prepared(cfg, job) as cfg:
            result = job.work(cfg)
    return result if world.is_main else None

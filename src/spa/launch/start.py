"""Starting a job on the ranks that were asked for."""

import logging
from pathlib import Path

from spa.config.schema import Config
from spa.distributed.world import joined
from spa.launch.job import Job, prepared
from spa.run.console import set_verbosity

log = logging.getLogger(__name__)


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
        elif world.size < cfg.trainer.n_gpus_per_node:
            log.warning(
                "trainer.n_gpus_per_node is %d, but this run has %d process%s: only launcher=ray starts "
                "one for each GPU. Use it, or: torchrun --nproc-per-node %d -m spa run …",
                cfg.trainer.n_gpus_per_node,
                world.size,
                "" if world.size == 1 else "es",
                cfg.trainer.n_gpus_per_node,
            )
        with prepared(cfg, job) as cfg:
            result = job.work(cfg)
    return result if world.is_main else None

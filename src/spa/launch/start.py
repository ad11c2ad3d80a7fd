"""Start jobs on the configured ranks."""

import logging
from pathlib import Path

from spa.config.schema import Config
from spa.distributed.world import joined
from spa.launch.job import Job, prepared
from spa.plugins import load_plugin
from spa.run.console import set_verbosity

log = logging.getLogger(__name__)


def launch(cfg: Config, *jobs: Job) -> Path | None:
    """Run jobs one after the other: on Ray workers with `launcher: ray`, otherwise on the ranks
    that torchrun started, or in this process alone. Returns the last job's result; None on ranks
    other than 0."""
    result: Path | None = None
    if cfg.launcher != "local":
        for job in jobs:
            result = load_plugin("launchers", cfg.launcher)(cfg, job)
        return result
    # The ranks join only once, because torchrun's store keeps the addresses of an earlier group.
    with joined(cfg.trainer.device, cfg.trainer.rank_timeout_s) as world:
        # The main rank logs for all; the others log only warnings.
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
        for job in jobs:
            with prepared(cfg, job) as own:
                result = job.work(own)
    return result if world.is_main else None

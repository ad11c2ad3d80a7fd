"""Methods side by side: the same base model, state text, puzzles and number of PPO episodes; one table.

Arms run as processes of their own. Fine-tuned arms share the self-play data of their seed. Arms without self-play go
on after the common number of PPO episodes until they have played as many episodes as SPA in all; that is a line of its
own.
"""

import json
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from spa.config.load import to_yaml
from spa.config.schema import Config
from spa.errors import TrainingError
from spa.recipes.arms import PLANS, arm_config, seeded
from spa.recipes.resume import run_context, stage_identity
from spa.signals import stoppable, stopping_children
from spa.tracking.console import same_verbosity
from spa.tracking.encoding import write_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One piece of work: the self-play data of a seed, or one arm of it."""

    seed: int
    arm: str  # "data" or the name of an arm
    directory: str
    data: str  # folder of the seed's self-play data
    config: Config


def main(cfg: Config, *, directory: Path | None = None) -> dict[str, Any]:
    """Run all arms for all seeds, write summary.json, return it. What is already done is kept."""
    root = directory or Path(cfg.trainer.run_dir)
    with run_context(root):
        return _compare(cfg, root)


def _compare(cfg: Config, root: Path) -> dict[str, Any]:
    from spa.recipes.summary import summarise

    write_atomic(root / "config.yaml", [to_yaml(cfg)])
    started = time.monotonic()
    jobs = plan_jobs(cfg, root)
    peaks = run_jobs(jobs, workers=cfg.compare.parallel)
    peaks[os.getpid()] = _peak_bytes()
    summary = summarise(cfg, root, seconds=time.monotonic() - started, peak_bytes=sum(peaks.values()))
    write_atomic(root / "summary.json", [json.dumps(summary, indent=1, sort_keys=True)])
    return summary


def seed_directory(cfg: Config, root: Path, index: int) -> Path:
    """Where the arms of one seed live: the run's folder itself if there is only one seed."""
    return root / f"seed_{index}" if cfg.compare.seeds > 1 else root


def plan_jobs(cfg: Config, root: Path) -> list[Job]:
    """The jobs of every seed, the longest first."""
    jobs = []
    for index in range(cfg.compare.seeds):
        base, folder = seeded(cfg, index), seed_directory(cfg, root, index)
        data = folder / "spa" / "data"
        arms = sorted(cfg.compare.arms, key=lambda arm: not PLANS[arm].fine_tuned)
        for arm in (["data"] if any(PLANS[a].fine_tuned for a in arms) else []) + arms:
            config = arm_config(base, "spa" if arm == "data" else arm, folder / ("spa" if arm == "data" else arm))
            if arm != "data" and not PLANS[arm].fine_tuned:
                config = longer(config)
            jobs.append(Job(seed=index, arm=arm, directory=config.trainer.run_dir, data=str(data), config=config))
    return jobs


def longer(cfg: Config) -> Config:
    """As many more PPO steps as self-play has batches, with a validation where the others stop."""
    steps = cfg.trainer.total_training_steps
    return replace(cfg, trainer=replace(cfg.trainer, total_training_steps=steps + extra_steps(cfg), also_test_at=steps))


def extra_steps(cfg: Config) -> int:
    """PPO steps that play as many episodes as self-play does (both play `es_manager.train` once)."""
    return cfg.generate.num_batches


def run_jobs(jobs: list[Job], *, workers: int, work: Callable[[Job], tuple[int, int]] | None = None) -> dict[int, int]:
    """Run every job, fine-tuned arms after their seed's data; returns the peak memory in bytes of each process."""
    work = work or run_job
    waiting, running, peaks = list(jobs), {}, {}
    has_data = {job.seed for job in jobs if job.arm == "data"}
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=same_verbosity())
    with pool, stopping_children():
        while waiting or running:
            for job in [job for job in waiting if _ready(job, has_data)][: workers - len(running)]:
                waiting.remove(job)
                running[pool.submit(work, job)] = job
            finished: set[Future] = wait(running, return_when=FIRST_COMPLETED).done
            for future in finished:
                job = running.pop(future)
                pid, peak = _outcome(future, job)
                peaks[pid] = max(peak, peaks.get(pid, 0))
                if job.arm == "data":
                    has_data.discard(job.seed)
    return peaks


def _outcome(future: "Future[tuple[int, int]]", job: Job) -> tuple[int, int]:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise TrainingError(
            f"a process of the comparison was killed while it did {job.arm} of seed {job.seed}, probably for want of "
            "memory. Use fewer at a time (compare.parallel), then start the same command again: what is done is kept."
        ) from error


def _ready(job: Job, unfinished_data: set[int]) -> bool:
    return job.arm == "data" or not PLANS[job.arm].fine_tuned or job.seed not in unfinished_data


def run_job(job: Job) -> tuple[int, int]:
    """Do one job in this process; returns its process id and peak memory in bytes. Asked to stop, it saves and raises
    StopRequested."""
    with stoppable():  # between the stages, too
        _do(job)
    return os.getpid(), _peak_bytes()


def _do(job: Job) -> None:
    from spa.recipes import generate, pipeline, sft
    from spa.recipes.shuffled import shuffled_data

    cfg, root, data = job.config, Path(job.directory), Path(job.data)
    if job.arm == "data":
        pipeline.stage(data, lambda: generate.main(cfg, directory=data), identity=stage_identity(cfg, "selfplay"))
    else:
        start, identity = None, stage_identity(cfg, "ppo")
        if PLANS[job.arm].fine_tuned:
            source = data
            if PLANS[job.arm].shuffled:
                shuffled = stage_identity(cfg, "selfplay")
                source = pipeline.stage(
                    root / "data", lambda: shuffled_data(cfg, data, root / "data"), identity=shuffled
                )
            world = sft.sft_identity(cfg, source)
            start = pipeline.stage(
                root / "sft", lambda: pipeline.world_model(cfg, source, root / "sft", identity=world), identity=world
            )
            identity = stage_identity(cfg, "ppo", parent=pipeline.digest_of(root / "sft", world))
        pipeline.ppo_stage(cfg, root / "ppo", start=start, identity=identity)


def _peak_bytes() -> int:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def controls(cfg: Config) -> Config:
    """The configuration with the two controls among its arms."""
    arms = dict.fromkeys((*cfg.compare.arms, "vanilla_wm", "spa_shuffled"))
    return replace(cfg, compare=replace(cfg.compare, arms=tuple(arms)))

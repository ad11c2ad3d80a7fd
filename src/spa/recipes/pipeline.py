"""The three stages one after the other, with a look at the world model before PPO is spent on it."""

import json
import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from spa.config.schema import Config
from spa.distributed.world import current_world
from spa.errors import ModelError
from spa.recipes import generate, ppo, sft
from spa.recipes.gate import evaluate_gate, stop_at_gate, write_gate
from spa.recipes.published import original_folders
from spa.recipes.resume import check_unchanged, run_context
from spa.signals import stoppable
from spa.tracking.encoding import write_atomic
from spa.tracking.logfile import LogFile
from spa.training.checkpoint import MARKER, damage, find_checkpoint, step_of

log = logging.getLogger(__name__)

DONE = "done.json"


def run(cfg: Config, *, ckpt: str = "last", generate_data: bool | None = None) -> Path:
    """All stages (`generate_data` True: anew; None: what is missing), or PPO alone (False) from a checkpoint of the SFT
    stage: `last` or a step number. Returns the last PPO checkpoint."""
    root = Path(cfg.trainer.run_dir)
    inside = any(folder.is_relative_to(root) for folder in stage_folders(cfg))
    with run_context(root) if inside else stoppable():  # each stage locks its own folder, too
        return _run(cfg, ckpt, generate_data)


def _run(cfg: Config, ckpt: str, generate_data: bool | None) -> Path:
    data, sft_dir, ppo_dir = stage_folders(cfg)
    if generate_data is True:
        if current_world().is_main:
            for folder in (data, sft_dir, ppo_dir):
                archive_stage(folder)
        current_world().barrier()
    if generate_data is False:
        start = find_sft_checkpoint(cfg, sft_dir, ckpt)
    else:
        if result_of(data):
            check_unchanged(cfg, "generate", data)
        if result_of(sft_dir):
            check_unchanged(cfg, "sft", sft_dir)
        stage(data, lambda: generate.main(cfg, directory=data))
        start = stage(sft_dir, lambda: world_model(cfg, data, sft_dir))
        stop_at_gate(cfg, sft_dir)
    steps = cfg.trainer.total_training_steps
    return stage(ppo_dir, lambda: ppo.main(cfg, model_path=str(start), directory=ppo_dir), steps=steps)


def stage_folders(cfg: Config) -> tuple[Path, Path, Path]:
    """Where data, SFT and PPO of a run lie: `data`, `sft` and `ppo` in its folder unless the configuration says other
    places (`generate.output_dir`, `sft.trainer.default_local_dir`, `trainer.default_local_dir`)."""
    data = cfg.generate.output_dir or Path(cfg.trainer.run_dir) / "data"
    return Path(data), Path(cfg.sft.trainer.default_local_dir), Path(cfg.trainer.default_local_dir)


def stage(directory: Path, work: Callable[[], Path], *, steps: int = 0) -> Path:
    """Do the work of a stage unless it is marked as done and its result is whole and has `steps` steps; the mark keeps
    the result and the seconds."""
    world = current_world()
    found = world.broadcast(lambda: str(result_of(directory) or ""))
    if found and (steps == 0 or step_of(Path(found)) >= steps):
        return Path(found)
    started = time.monotonic()
    result = work()
    seconds = time.monotonic() - started
    if world.is_main:
        place = result.relative_to(directory) if result.is_relative_to(directory) else result
        write_atomic(directory / DONE, [json.dumps({"result": str(place), "seconds": round(seconds, 1)})])
    return result


def result_of(directory: Path) -> Path | None:
    """What a finished stage returned, wherever the run has been moved to; None if it is not finished, or if its result
    has been removed or damaged since: then the stage has to be done again."""
    try:
        noted = Path(json.loads((directory / DONE).read_text(encoding="utf-8"))["result"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    result = directory / noted
    if not result.exists() and directory.name in noted.parts:  # an older mark, with the place that the run had then
        result = directory.joinpath(*noted.parts[noted.parts.index(directory.name) + 1 :])
    problem = None if result.exists() else "it is gone"
    if problem is None and (result / MARKER).is_file():
        problem = damage(result)
    if problem is not None:
        log.warning("%s cannot be used any more (%s); the stage is taken up again", result, problem)
        return None
    return result


def archive_stage(directory: Path) -> None:
    """Move an earlier stage's folder out of the way; nothing that was produced is lost."""
    if directory.exists():
        number = 1
        while (old := directory.with_name(f"{directory.name}.previous-{number}")).exists():
            number += 1
        directory.rename(old)


def find_sft_checkpoint(cfg: Config, sft_dir: Path, ckpt: str) -> Path:
    """Where PPO alone starts: this run's SFT stage, the original's checkpoint folder, or the configured model if it is
    a folder itself."""
    for folder in (sft_dir, *original_folders(cfg, "sftckpt", "checkpoints")):
        if folder.is_dir():
            return find_checkpoint(folder, ckpt)
    if Path(cfg.model_path).is_dir():
        return Path(cfg.model_path)
    raise ModelError(
        f"{sft_dir}: there is no fine-tuned model yet. Run all stages (GENERATE_DATA True), or give one with "
        "model_path=FOLDER."
    )


def world_model(cfg: Config, data: Path, directory: Path) -> Path:
    """Stage 2, and more of it while the gate does not open and the preset allows; returns the checkpoint for PPO."""
    with LogFile(directory / "log.txt") if current_world().is_main else nullcontext():
        return _world_model(cfg, data, directory)


def _world_model(cfg: Config, data: Path, directory: Path) -> Path:
    started = time.monotonic()
    checkpoint = sft.main(cfg, directory=directory, data=data)
    gate = evaluate_gate(cfg, directory, 0)
    while cfg.gate.enable and not gate.passed and gate.rounds < cfg.gate.max_extra_rounds:
        elapsed = current_world().broadcast(lambda: time.monotonic() - started)
        if cfg.gate.time_cap_s is not None and elapsed > cfg.gate.time_cap_s:
            gate = replace(gate, text=f"{gate.text} Time cap of {cfg.gate.time_cap_s:.0f} s reached.")
            break
        log.warning("%s Training %d more steps.", gate.text, cfg.gate.extra_steps)
        number = gate.rounds + 1
        more = replace(
            cfg,
            model_path=str(checkpoint),
            sft=replace(
                cfg.sft,
                model=replace(cfg.sft.model, partial_pretrain=str(checkpoint)),
                trainer=replace(
                    cfg.sft.trainer,
                    total_training_steps=cfg.gate.extra_steps,
                    resume_path=None,
                    seed=cfg.sft.trainer.seed + 1000 * number,
                ),
            ),
        )
        folder = directory / f"extra_{number}"
        checkpoint = sft.main(more, directory=folder, data=data)
        gate = evaluate_gate(cfg, folder, number)
    if current_world().is_main:
        write_gate(directory, gate)
    log.warning("%s", gate.text) if cfg.gate.enable and not gate.passed else log.info("%s", gate.text)
    return checkpoint

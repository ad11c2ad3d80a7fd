"""The three stages one after the other, with a look at the world model before PPO is spent on it."""

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

from spa.config.schema import Config
from spa.distributed.world import current_world
from spa.errors import ModelError
from spa.identity import Identity, differences, file_sum
from spa.recipes import generate, ppo, sft
from spa.recipes.gate import evaluate_gate, stop_at_gate, write_gate
from spa.recipes.published import original_folders
from spa.recipes.resume import (
    DATA_FILES,
    DONE,
    changes,
    check_identity,
    read_mark,
    recorded_identity,
    restore_records,
    result_of,
    run_context,
    stage_identity,
)
from spa.recipes.rounds import Round, first_round, next_round, round_folders, write_rounds
from spa.signals import stoppable
from spa.tracking.encoding import write_atomic
from spa.tracking.logfile import LogFile
from spa.training.checkpoint import find_checkpoint, step_of

log = logging.getLogger(__name__)


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
        _archive((*round_folders(cfg), data, sft_dir, ppo_dir))
    if generate_data is False:
        start = find_sft_checkpoint(cfg, sft_dir, ckpt)
        return ppo_stage(cfg, ppo_dir, start=start, identity=ppo_identity(cfg, start, sft_dir))
    own, parent = first_round(cfg, data, sft_dir), None
    while own.number < cfg.generate.rounds:
        chain = round_chain(own, parent)
        _settle(cfg, chain)
        checkpoint, parent = learn_world(own, chain), digest_of(*chain[1])
        own = next_round(cfg, own, checkpoint, data, sft_dir)
    chain = round_chain(own, parent)
    policy = stage_identity(cfg, "ppo", parent=digest_of(*chain[1]))
    _settle(cfg, [*chain, (ppo_dir, policy)])
    start = learn_world(own, chain)
    stop_at_gate(cfg, sft_dir)
    return ppo_stage(cfg, ppo_dir, start=start, identity=policy)


def round_chain(own: Round, parent: str | None) -> list[tuple[Path, Identity]]:
    """Folder and identity of a round's two stages; `parent` is the digest of the round before."""
    selfplay = stage_identity(own.cfg, "selfplay", parent=parent)
    return [(own.data, selfplay), (own.sft, stage_identity(own.cfg, "sft", parent=digest_of(own.data, selfplay)))]


def _settle(cfg: Config, chain: Sequence[tuple[Path, Identity]]) -> None:
    """Archive changed work if the run is to begin anew, and refuse to go on with it otherwise (ConfigError)."""
    if cfg.trainer.resume_mode == "disable":  # what is finished as it is asked for is kept
        changed = current_world().broadcast(lambda: [bool(changes(*pair)) for pair in chain])
        _archive([folder for (folder, _), differs in zip(chain, changed, strict=True) if differs])
    current_world().broadcast(lambda: check_identity(chain))


def learn_world(own: Round, chain: Sequence[tuple[Path, Identity]]) -> Path:
    """Stages 1 and 2 of a round; returns the fine-tuned checkpoint."""
    (data, selfplay), (sft_dir, world) = chain
    before = [(done.cfg, done.data) for done in own.before]

    def play() -> Path:
        return generate.main(own.cfg, directory=data, first_batch=own.first_batch, earlier=before, identity=selfplay)

    stage(data, play, identity=selfplay)
    start = stage(sft_dir, lambda: world_model(own.cfg, data, sft_dir, identity=world), identity=world)
    if own.before and current_world().is_main:
        write_rounds(sft_dir, (*own.before, own))
    return start


def _archive(folders: Sequence[Path]) -> None:
    if current_world().is_main:
        for folder in folders:
            archive_stage(folder)
    current_world().barrier()


def digest_of(folder: Path, identity: Identity) -> str:
    """The digest that the next stage knows a stage by: the recorded one, if the work in its folder is the same."""
    known = current_world().broadcast(lambda: _digest(folder, identity))
    return known or identity.digest


def _digest(folder: Path, identity: Identity) -> str | None:
    known = recorded_identity(folder)
    return known.digest if known is not None and not differences(known, identity) else None


def selfplay_stage(cfg: Config) -> Path:
    """Stage 1 alone, in its folder."""
    data, _, _ = stage_folders(cfg)
    identity = stage_identity(cfg, "selfplay")
    work = partial(generate.main, cfg, directory=data, identity=identity)
    return stage(data, work, identity=identity, anew=cfg.trainer.resume_mode == "disable")


def sft_stage(cfg: Config) -> Path:
    """Stage 2 alone, in its folder, on the configured data or what stage 1 left."""
    data, sft_dir, _ = stage_folders(cfg)
    identity = sft.sft_identity(cfg, data)
    work = partial(world_model, cfg, data, sft_dir, identity=identity)
    return stage(sft_dir, work, identity=identity, anew=_begins_elsewhere(cfg, cfg.sft.trainer.resume_path))


def ppo_stage(
    cfg: Config, directory: Path | None = None, *, start: Path | None = None, identity: Identity | None = None
) -> Path:
    """Stage 3 alone, in its folder, from `start` or `model_path`."""
    out = directory or stage_folders(cfg)[2]
    identity = identity or stage_identity(cfg, "ppo")
    work = partial(ppo.main, cfg, model_path=start and str(start), directory=out, identity=identity)
    named = cfg.trainer.resume_from_path if cfg.trainer.resume_mode == "resume_path" else None
    anew = start is None and _begins_elsewhere(cfg, named)
    return stage(out, work, steps=cfg.trainer.total_training_steps, identity=identity, anew=anew)


def _begins_elsewhere(cfg: Config, named: str | None) -> bool:
    """Whether a single stage is asked to begin anew or at a certain checkpoint, whatever is finished."""
    return named is not None or cfg.trainer.resume_mode == "disable"


def ppo_identity(cfg: Config, start: Path, sft_dir: Path) -> Identity:
    """The identity of PPO from a checkpoint: known by the stage that made it, or by its content if that is not ours."""
    made = recorded_identity(sft_dir) if start.is_relative_to(sft_dir) else None
    if made is None:
        return stage_identity(replace(cfg, model_path=str(start)), "ppo")
    last = result_of(sft_dir) == start
    return stage_identity(cfg, "ppo", parent=made.digest if last else f"{made.digest} {start.name}")


def stage_folders(cfg: Config) -> tuple[Path, Path, Path]:
    """Where data, SFT and PPO of a run lie: `data`, `sft` and `ppo` in its folder unless the configuration says other
    places (`generate.output_dir`, `sft.trainer.default_local_dir`, `trainer.default_local_dir`)."""
    data = cfg.generate.output_dir or Path(cfg.trainer.run_dir) / "data"
    return Path(data), Path(cfg.sft.trainer.default_local_dir), Path(cfg.trainer.default_local_dir)


def stage(directory: Path, work: Callable[[], Path], *, identity: Identity, steps: int = 0, anew: bool = False) -> Path:
    """Do the work of a stage unless it is marked as done and its result is whole and has `steps` steps (never if it is
    to be done `anew`). The mark keeps the result, its identity and the seconds.

    Raises ConfigError if the folder holds work of another identity, before anything is written.
    """
    world = current_world()
    found = world.broadcast(lambda: "" if anew else str(_finished(directory, identity) or ""))
    if found and (steps == 0 or step_of(Path(found)) >= steps):
        return Path(found)
    spent = read_mark(directory).get("seconds", 0.0) if found else 0.0  # of the shorter run that is made longer
    started = time.monotonic()
    result = work()
    seconds = spent + time.monotonic() - started
    if world.is_main:
        place = result.relative_to(directory) if result.is_relative_to(directory) else result
        mark = {"result": str(place), "seconds": round(seconds, 1), "digest": identity.digest}
        files = {path.name: file_sum(path) for path in sorted(result.glob(DATA_FILES))}
        content = mark | {"sha256": files, "identity": identity.to_json()}
        write_atomic(directory / DONE, [json.dumps(content, indent=1)])
    world.barrier()
    return result


def _finished(directory: Path, identity: Identity) -> Path | None:
    check_identity([(directory, identity)])
    found = result_of(directory)
    if found is not None:
        restore_records(directory)
    return found


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
    finished = result_of(sft_dir) if ckpt == "last" else None
    if finished is not None:
        return finished
    for folder in (sft_dir, *original_folders(cfg, "sftckpt", "checkpoints")):
        if folder.is_dir():
            return find_checkpoint(folder, ckpt)
    if Path(cfg.model_path).is_dir():
        return Path(cfg.model_path)
    raise ModelError(
        f"{sft_dir}: there is no fine-tuned model yet. Run all stages (GENERATE_DATA True), or give one with "
        "model_path=FOLDER."
    )


def world_model(cfg: Config, data: Path, directory: Path, *, identity: Identity | None = None) -> Path:
    """Stage 2, and more of it while the gate does not open and the preset allows; returns the checkpoint for PPO."""
    with LogFile(directory / "log.txt") if current_world().is_main else nullcontext():
        return _world_model(cfg, data, directory, identity)


def _world_model(cfg: Config, data: Path, directory: Path, identity: Identity | None) -> Path:
    started = time.monotonic()
    checkpoint = sft.main(cfg, directory=directory, data=data, identity=identity)
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

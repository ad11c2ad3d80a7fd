"""Run the three stages in order, with the world-model gate before PPO."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from spa.config.schema import Config
from spa.config.stages import StageName
from spa.distributed.world import current_world
from spa.errors import ModelError
from spa.examples.source import source_of
from spa.methods.context import examples_folder
from spa.plugins import load_plugin, translated
from spa.recipes import ppo_run, selfplay, sft_run
from spa.recipes.gate import evaluate_gate, no_gate, stop_at_gate, write_gate
from spa.recipes.rounds import Round, round_folders, rounds_of, write_rounds
from spa.recipes.sft_probes import make_probe
from spa.run.announce import StagePlan, expected_time, plan_lines, save_plan
from spa.run.checkpoint import find_checkpoint
from spa.run.files import OLDER_COPIES
from spa.run.fingerprint import Fingerprint
from spa.run.hashing import stage_fingerprint
from spa.run.manifest import (
    Manifest,
    archive_other_work,
    archive_work,
    is_finished,
    refuse_other_work,
    result_of,
)
from spa.run.signals import stoppable
from spa.run.stage import locked
from spa.worldmodel.sft_data import from_game

log = logging.getLogger(__name__)


def run(
    cfg: Config, *, ckpt: str = "last", generate_data: bool | None = None, gate: bool = False
) -> Path:
    """Run all stages, or PPO alone; return the last PPO checkpoint.

    Args:
        generate_data: True runs all stages from scratch, None runs the missing ones, False runs PPO
            alone.
        ckpt: the SFT checkpoint from which PPO alone starts: `last` or a step number.
        gate: check the gate before PPO alone, and raise TrainingError if the model failed it. A run
            of all stages always does this.
    """
    root, (data, sft_dir, ppo_dir) = Path(cfg.trainer.run_dir), stage_folders(cfg)
    inside = any(folder.is_relative_to(root) for folder in stage_folders(cfg))
    # If any stage's folder is inside the run's folder, one lock covers the whole run. Each stage
    # also locks its own folder.
    with locked(root) if inside else stoppable():
        if generate_data is True:
            archive_stages(cfg)
        if generate_data is False:
            if gate:
                stop_at_gate(cfg, sft_dir)
            start = find_sft_checkpoint(cfg, sft_dir, ckpt)
            policy = ppo_fingerprint(cfg, start, sft_dir)
            return ppo_run.run_ppo(
                cfg, model_path=str(start), directory=ppo_dir, fingerprint=policy
            )
        rounds = rounds_of(cfg, data, sft_dir)
        chain = fingerprints(rounds)
        policy = stage_fingerprint(cfg, "ppo", parent=chain[-1][1])
        # All folders are checked first, so that work with other settings is found now and not after
        # hours of training.
        _handle_earlier_work(cfg, [*chain, (ppo_dir, policy)])
        plan = _announce(cfg, rounds, [*chain, (ppo_dir, policy)])
        known = dict(chain)
        made: list[Path] = []
        for own in rounds:
            # A round starts from the previous round's checkpoint, which exists only at this point.
            ready = own.ready()
            _say_next(plan, own.data)
            run_selfplay_round(own, ready, fingerprint=known[own.data])
            _say_next(plan, own.sft)
            made.append(run_sft_round(own, ready, fingerprint=known[own.sft]))
        # The gate is checked even if an earlier command finished SFT: its limits may have changed.
        stop_at_gate(cfg, sft_dir)
        _say_next(plan, ppo_dir)
        return ppo_run.run_ppo(
            cfg, model_path=str(made[-1]), directory=ppo_dir, fingerprint=policy, alone=False
        )


def fingerprints(rounds: Sequence[Round]) -> list[tuple[Path, Fingerprint]]:
    """Return the folder and fingerprint of each stage of all rounds, in order. Each fingerprint is
    the parent of the next."""
    chain: list[tuple[Path, Fingerprint]] = []
    for own in rounds:
        for stage, folder in own.stages:
            parent = chain[-1][1] if chain else None
            chain.append((folder, stage_fingerprint(own.cfg, stage, parent=parent)))
    return chain


def _handle_earlier_work(cfg: Config, chain: Sequence[tuple[Path, Fingerprint]]) -> None:
    """Look for earlier work with other settings in the folders of the stages.

    With `trainer.resume_mode=disable`, archive such work and log a warning; otherwise raise
    ConfigError.
    """
    world = current_world()
    if cfg.trainer.resume_mode == "disable" and world.is_main:
        archive_other_work(chain)
    world.broadcast(lambda: refuse_other_work(chain))


def _announce(
    cfg: Config, rounds: Sequence[Round], chain: Sequence[tuple[Path, Fingerprint]]
) -> list[StagePlan]:
    """Log which stages run and which are reused, and the expected time if known. Save and return
    this plan, with one entry per stage."""
    several = len(rounds) > 1
    names = [
        f"{name} {own.number}" if several else name
        for own in rounds
        for name in ("self-play", "SFT")
    ]
    jobs: list[tuple[StageName, Config]] = [
        *((stage, own.cfg) for own in rounds for stage, _ in own.stages),
        ("ppo", cfg),
    ]
    seconds_here = load_plugin("estimates", "seconds")
    stages = [
        StagePlan(name, folder, "reuse")
        if is_finished(folder, fingerprint)
        else StagePlan(name, folder, "run", expected=seconds_here(own, stage))
        for name, (folder, fingerprint), (stage, own) in zip(
            [*names, "PPO"], chain, jobs, strict=True
        )
    ]
    if current_world().is_main and any(stage.action == "run" for stage in stages):
        methods = {cfg.trainer.experiment_name: stages}
        save_plan(Path(cfg.trainer.run_dir), {"": stages}, workers=1)
        left = expected_time(methods, workers=1)
        time = [] if left is None else [f"This takes {left}."]
        for line in [*plan_lines(methods), *time]:
            log.info("%s", line)
    return stages


def _say_next(plan: Sequence[StagePlan], folder: Path) -> None:
    """Log which stage begins, which follow, and the time left, estimated from the speed of earlier
    stages. Logs nothing if the run has reused all stages so far."""
    number = [stage.folder for stage in plan].index(folder)
    if not current_world().is_main or not any(stage.action == "run" for stage in plan[:number]):
        return
    # A StagePlan caches the progress that it has read, so copies are made to read it again.
    before = [replace(stage, action="reuse") for stage in plan[:number]]
    coming = [replace(stage) for stage in plan[number:]]
    left = expected_time({"": [*before, *coming]}, workers=1)
    later = ", ".join(stage.name for stage in coming[1:])
    log.info(
        "%s runs now%s%s",
        coming[0].name,
        f", then {later}" if later else "",
        "" if left is None else f"; {left} left in all",
    )


def run_selfplay_round(
    own: Round, cfg: Config, *, fingerprint: Fingerprint, episodes: Path | None = None
) -> Path:
    """Run stage 1 of a round, with the model of `cfg`. Return the folder of the data set. See
    `selfplay.run_self_play` for `episodes`."""
    return selfplay.run_self_play(
        cfg,
        directory=own.data,
        first_batch=own.first_batch,
        earlier=own.earlier,
        before=[done.data for done in own.before],
        fingerprint=fingerprint,
        episodes=episodes,
    )


def run_sft_round(own: Round, cfg: Config, *, fingerprint: Fingerprint) -> Path:
    """Run stage 2 of a round, starting from the model of `cfg`; return the last checkpoint."""
    return run_sft_stage(cfg, own.data, own.sft, fingerprint=fingerprint, rounds=(*own.before, own))


def archive_stages(cfg: Config) -> None:
    """Archive all stages of a run, so that they start from scratch."""
    if current_world().is_main:
        for folder in every_folder(cfg):
            archive_work(folder)
            if cfg.trainer.default_hdfs_dir:  # the folder may be missing although its copies exist
                folder.mkdir(parents=True, exist_ok=True)
                (folder / OLDER_COPIES).touch()
    # No rank may read a folder that rank 0 is about to move.
    current_world().barrier()


def ppo_fingerprint(cfg: Config, start: Path, sft_dir: Path) -> Fingerprint:
    """Return the fingerprint of PPO when it starts from the checkpoint `start`.

    It includes the fingerprint of the SFT stage if the checkpoint is in that stage's folder, and
    otherwise the content of the checkpoint.
    """
    made = Manifest.read(sft_dir) if start.is_relative_to(sft_dir) else None
    if made is None:
        return stage_fingerprint(
            replace(cfg, model_path=str(start)), "ppo", data=examples_folder(cfg)
        )
    # The fingerprint of the SFT stage identifies its last checkpoint. If PPO starts from another
    # checkpoint, its name is added.
    other = {} if result_of(sft_dir) == start else {"the checkpoint it starts from": start.name}
    return stage_fingerprint(cfg, "ppo", parent=made.fingerprint, content=other)


def stage_folders(cfg: Config) -> tuple[Path, Path, Path]:
    """The folders of self-play data, SFT and PPO. By default they are `data`, `sft` and `ppo` in
    the run's folder; `generate.output_dir`, `sft.trainer.default_local_dir` and
    `trainer.default_local_dir` set other paths."""
    data = cfg.generate.output_dir or Path(cfg.trainer.run_dir) / "data"
    return Path(data), Path(cfg.sft.trainer.default_local_dir), Path(cfg.trainer.default_local_dir)


def every_folder(cfg: Config) -> tuple[Path, ...]:
    """The folders of all stages of the run, followed by the stage folders of earlier rounds."""
    rounds = [folder / part for folder in round_folders(cfg) for part in ("data", "sft")]
    return (*stage_folders(cfg), *rounds)


def find_sft_checkpoint(cfg: Config, sft_dir: Path, ckpt: str) -> Path:
    """Find the checkpoint from which PPO starts if it runs alone.

    The checkpoint comes from this run's SFT folder or, if that does not exist, from the checkpoint
    folder of the original code. If neither exists and `ckpt` is `last`, the configured model is
    used if it is a folder. Raises ModelError if nothing is found.
    """
    result = result_of(sft_dir) if ckpt == "last" else None
    if result is not None:
        return result
    for folder in (sft_dir, *translated("checkpoint_folders", cfg)):
        if folder.is_dir():
            return find_checkpoint(folder, ckpt)
    if Path(cfg.model_path).is_dir():
        if ckpt != "last":
            raise ModelError(
                f"{sft_dir}: the folder has no checkpoint of step {ckpt}. To start from "
                f"model_path={cfg.model_path}, write last instead of the step."
            )
        return Path(cfg.model_path)
    raise ModelError(
        f"{sft_dir}: the folder has no fine-tuned model. Run all stages (GENERATE_DATA "
        "True), or name a fine-tuned model with model_path=FOLDER."
    )


def run_sft_stage(
    cfg: Config,
    data: Path | None = None,
    directory: Path | None = None,
    *,
    fingerprint: Fingerprint | None = None,
    rounds: Sequence[Round] = (),
) -> Path:
    """Run stage 2 and the gate; return the checkpoint for PPO.

    Without `fingerprint` the stage runs alone, outside a run of all stages. A finished stage then
    runs again if `trainer.resume_mode=disable` or `sft.trainer.resume_path` is set. If
    `generate.rounds` is above 1, the data set then determines the round: the last round if the data
    set was made after the first round, otherwise the first.

    Args:
        data: folder of the data set; None: the configured one.
        directory: folder of the stage; None: the configured one.
        fingerprint: the stage's fingerprint in a run of all stages.
        rounds: all rounds up to this one. If there are several, a summary of each is written.
    """
    own_data, own_directory, _ = stage_folders(cfg)
    data = data or own_data
    directory = directory or own_directory
    again = fingerprint is None and (
        cfg.trainer.resume_mode == "disable" or cfg.sft.trainer.resume_path is not None
    )
    if fingerprint is None and cfg.generate.rounds > 1:
        planned = rounds_of(cfg, data, directory)
        if len(planned) == 1:
            cfg = planned[0].cfg  # the source of the examples has only one round
        elif _is_of_last_round(cfg, data):
            rounds = planned
        else:
            cfg = source_of(cfg).fine_tuned_alone(cfg)
    if fingerprint is None and rounds:
        chain = fingerprints(rounds)
        # The stages before this one must belong to this configuration.
        current_world().broadcast(lambda: refuse_other_work(chain[:-1]))
        cfg = rounds[-1].ready()
        fingerprint = chain[-1][1]
    fingerprint = fingerprint or sft_run.sft_fingerprint(cfg, data)
    with sft_run.open_stage(cfg, directory, fingerprint, again=again) as stage:
        if stage.result is not None:
            return stage.result
        probe = None
        if cfg.sft.trainer.eval_episodes and from_game(cfg):
            probe = partial(make_probe, cfg, data, [done.data for done in rounds[:-1]])
        sft_run.fine_tune(cfg, stage, data, probe)
        # The verdict is written before `finish`: after a kill in between, the next start writes it
        # again without training.
        gate = evaluate_gate(cfg, directory) if from_game(cfg) else no_gate()
        if current_world().is_main:
            write_gate(directory, gate)
            if len(rounds) > 1:
                write_rounds(directory, rounds)
        # If the gate is disabled and nothing was measured, the verdict (failed) would only alarm
        # the user.
        if cfg.gate.enable or gate.diagnosis != "not_measured":
            level = logging.WARNING if cfg.gate.enable and not gate.passed else logging.INFO
            log.log(level, "%s", gate.text)
        return stage.finish()


def _is_of_last_round(cfg: Config, data: Path) -> bool:
    """Return whether the data set was made after the first round; if not, log a warning. The
    fingerprint of such a data set has a parent: the SFT stage of the round before."""

    def goes_on() -> bool:
        made = Manifest.read(data)
        return made is not None and made.fingerprint.parent is not None

    last = current_world().broadcast(goes_on)
    if not last and current_world().is_main:
        log.warning(
            "With generate.rounds=%d, a command for a single stage fine-tunes only the "
            "first round on these data; `spa run` runs all rounds",
            cfg.generate.rounds,
        )
    return last

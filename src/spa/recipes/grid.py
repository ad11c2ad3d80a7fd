"""Many trainings that share their stages: every stage is done once, by whoever needs it first, on whatever is free.

A stage lives in a folder named by a hash of everything that its result depends on, so two experiments that differ only
in PPO have one data set and one world model, and a grid that was broken off goes on where it stopped.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from spa.config.convert import to_plain
from spa.config.schema import Config
from spa.errors import ConfigError, SpaError, TrainingError
from spa.signals import stopping_children
from spa.tracking.console import same_verbosity

log = logging.getLogger(__name__)

Kind = Literal["data", "sft", "ppo"]
_TRAINER = (
    "total_training_steps", "test_freq", "also_test_at", "val_before_train", "validation_steps", "critic_warmup",
)  # fmt: skip
_PLACES = ("output_dir", "default_local_dir", "resume_path", "keep", "train_files", "val_files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One piece of work. `source` is the folder of the stage before it, if there is one."""

    kind: Kind
    folder: str
    config: Config
    source: str | None = None
    label: str = ""  # of the experiment that asked first

    @property
    def done(self) -> bool:
        """Whether its result is there."""
        from spa.recipes.pipeline import DONE

        return (Path(self.folder) / DONE).is_file()


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """An experiment as it is run once: the configuration of stages 1 and 2 (None: PPO from the base model) and of 3."""

    label: str
    world_model: Config | None
    ppo: Config


def stages_of(training: Training, root: Path) -> list[Stage]:
    """The stages of a training in their order, the PPO stage last."""
    stages: list[Stage] = []
    source = None
    if training.world_model is not None:
        cfg = training.world_model
        wanted: tuple[tuple[Kind, Any], ...] = (("data", data_content(cfg)), ("sft", sft_content(cfg)))
        for kind, content in wanted:
            folder = str(root / f"{kind}-{_hash(content)}")
            stages.append(Stage(kind=kind, folder=folder, config=cfg, source=source, label=training.label))
            source = folder
    content = [Path(source).name if source else None, ppo_content(training.ppo)]
    folder = str(root / f"ppo-{_hash(content)}")
    return [*stages, Stage(kind="ppo", folder=folder, config=training.ppo, source=source, label=training.label)]


def data_content(cfg: Config) -> dict[str, Any]:
    """What a data set depends on."""
    proxy = to_plain(cfg.agent_proxy)
    return {
        **_common(cfg),
        "proxy": {key: proxy[key] for key in ("max_turn", "max_actions_per_turn", "action_sep", "enable_think")},
        "example": cfg.ctx_manager.example,
        "generate": _without_places(to_plain(cfg.generate)),
        "max_model_len": cfg.actor_rollout_ref.rollout.max_model_len,
        "validation_steps": cfg.trainer.validation_steps,
    }


def sft_content(cfg: Config) -> dict[str, Any]:
    """What a fine-tuned model depends on."""
    return {**data_content(cfg), "sft": _without_places(to_plain(cfg.sft)), "gate": to_plain(cfg.gate)}


def ppo_content(cfg: Config) -> dict[str, Any]:
    """What a PPO run depends on, its starting model aside if that is a fine-tuned one."""
    parts = ("agent_proxy", "ctx_manager", "actor_rollout_ref", "critic", "algorithm", "lora")
    trainer = to_plain(cfg.trainer)
    return {
        **_common(cfg),
        **{name: to_plain(getattr(cfg, name)) for name in parts},
        "trainer": {name: trainer[name] for name in _TRAINER},
    }


def _common(cfg: Config) -> dict[str, Any]:
    groups = (cfg.es_manager.train, cfg.es_manager.val)
    tags = dict.fromkeys(tag for group in groups for tag in group.env_configs.tags)
    return {
        "model": cfg.model_path,
        "state_text": cfg.state_text,
        "seed": to_plain(cfg.seed),
        "groups": to_plain(cfg.es_manager),
        "envs": {tag: to_plain(cfg.custom_envs[tag]) for tag in tags},
    }


def _without_places(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {key: _without_places(value) for key, value in tree.items() if key not in _PLACES}


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:10]


def distinct(trainings: Sequence[Training], root: Path) -> list[Stage]:
    """Every stage of all trainings once; sources come before what needs them."""
    found: dict[str, Stage] = {}
    for training in trainings:
        for stage in stages_of(training, root):
            found.setdefault(stage.folder, stage)
    return list(found.values())


Work = Callable[[Stage, str], None]
PoolOf = Callable[[int], Executor]


def processes(count: int) -> Executor:
    """Workers that are processes of their own, each with a fresh interpreter."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=same_verbosity())


def do_stage(stage: Stage, device: str) -> None:
    """Do one stage in this process."""
    from spa.recipes import generate, pipeline, sft
    from spa.recipes.resume import stage_identity

    cfg = replace(stage.config, trainer=replace(stage.config.trainer, device=device, experiment_name=stage.label))
    folder = Path(stage.folder)
    if stage.kind == "data":
        identity = stage_identity(cfg, "selfplay")
        pipeline.stage(folder, lambda: generate.main(cfg, directory=folder, identity=identity), identity=identity)
    elif stage.kind == "sft":
        data = Path(str(stage.source))
        identity = sft.sft_identity(cfg, data)
        pipeline.stage(folder, lambda: pipeline.world_model(cfg, data, folder, identity=identity), identity=identity)
    else:
        start = pipeline.result_of(Path(stage.source)) if stage.source else Path(cfg.model_path)
        if start is None:
            raise TrainingError(f"{stage.source}: its checkpoint is gone or damaged. Remove its {pipeline.DONE}, then "
                                "start the same command again: the stage is done anew.")  # fmt: skip
        pipeline.ppo_stage(
            cfg, folder, start=start, identity=pipeline.ppo_identity(cfg, start, Path(stage.source or "-"))
        )


def run_grid(
    stages: Sequence[Stage], *, devices: Sequence[str], pool: PoolOf = processes, work: Work = do_stage
) -> None:
    """Do every stage that is not done, one at a time per device, each after its source.

    A stage that fails costs what depends on it; the others go on. Raises TrainingError at the end if any failed.
    """
    waiting = [stage for stage in stages if not stage.done]
    missing = {stage.folder for stage in waiting}
    free, running, failed = list(devices), dict[Future, tuple[Stage, str]](), dict[str, str]()
    with pool(len(devices)) as workers, stopping_children():
        while waiting or running:
            for stage in [s for s in waiting if s.source in failed]:
                waiting.remove(stage)
                failed[stage.folder] = f"its source {Path(stage.source or '').name} failed"
            for stage in [s for s in waiting if s.source not in missing][: len(free)]:
                waiting.remove(stage)
                device = free.pop(0)
                log.info("%s (%s) on %s; %d more wait", Path(stage.folder).name, stage.label, device, len(waiting))
                running[workers.submit(work, stage, device)] = (stage, device)
            if not running:
                continue
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                stage, device = running.pop(future)
                free.append(device)
                problem = _problem(future)
                if problem:
                    failed[stage.folder] = problem
                    log.warning("%s (%s) failed: %s", Path(stage.folder).name, stage.label, problem)
                else:
                    missing.discard(stage.folder)
    if failed:
        lines = "\n  ".join(f"{folder}: {text}" for folder, text in failed.items())
        raise TrainingError(
            f"{len(failed)} of {len(stages)} stages could not be done; the others are kept, and the same command "
            f"tries again:\n  {lines}"
        )


def with_results(
    stages: Sequence[Stage],
    results: Callable[[], dict[str, Any]],
    *,
    parallel: int,
    pool: PoolOf = processes,
    work: Work = do_stage,
) -> dict[str, Any]:
    """Do the stages, then return `results()`. When stages fail, results of the others are written all the same, before
    TrainingError is raised.

    Raises ConfigError if `parallel` is less than 1.
    """
    try:
        run_grid(stages, devices=free_devices(parallel), pool=pool, work=work)
    except TrainingError:
        results()
        raise
    return results()


def _problem(future: Future) -> str:
    """Why a stage failed; empty if it did not. Errors that are not the user's to solve are raised."""
    error = future.exception()
    if error is None:
        return ""
    if isinstance(error, SpaError | MemoryError):
        return str(error) or "out of memory"
    if isinstance(error, BrokenProcessPool):
        raise TrainingError(
            "a process of the grid was killed, probably for want of memory. Use fewer at a time (--parallel), then "
            "start the same command again: finished stages are kept."
        ) from error
    raise error


def free_devices(parallel: int) -> list[str]:
    """Every GPU, or the CPU `parallel` times. Raises ConfigError if that is less than once."""
    if parallel < 1:
        raise ConfigError(f"--parallel is {parallel}; it must be at least 1")
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [f"cuda:{index}" for index in range(gpus)] or ["cpu"] * parallel

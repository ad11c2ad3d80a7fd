"""Build stage 2: the policy, the examples and the folder for `train_sft`. `spa.recipes.pipeline` runs
it, with the gate."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from spa.config.schema import Config
from spa.distributed.world import current_world
from spa.models.allocator import limit_kernel_caches
from spa.models.build import pick_device
from spa.prompts.template import ChatTemplate
from spa.recipes.build import build_policy, check_optimizer, sft_optimizer, trainable
from spa.recipes.sft import Learner, train_sft
from spa.run.checkpoint import load_state
from spa.run.fingerprint import Fingerprint
from spa.run.hashing import stage_fingerprint
from spa.run.manifest import Manifest, result_of
from spa.run.recorder import Recorder
from spa.run.stage import Stage
from spa.run.trackers import trackers_of
from spa.training.update import MicroBatching
from spa.types import Metrics
from spa.worldmodel.sft_data import find_data, make_data

MakeProbe = Callable[[Learner, Recorder], Callable[[int], Metrics]]
"""Function that builds the probe of SFT, itself a function from a step to world-model metrics."""


def open_stage(
    cfg: Config, folder: Path, fingerprint: Fingerprint, *, again: bool = False
) -> Stage:
    """Create the `Stage` of SFT in `folder`, for use in a `with` statement. With `again`, the stage
    runs even if it is finished."""
    trainer = cfg.sft.trainer
    return Stage(
        cfg,
        folder,
        fingerprint,
        keep=trainer.keep,
        resume_path=trainer.resume_path,
        again=again,
        trackers=trackers_of(cfg),
    )


def fine_tune(
    cfg: Config, stage: Stage, data: Path | None, make_probe: MakeProbe | None = None
) -> None:
    """Load the model `sft.model.partial_pretrain` and the data set, and train until the last step.

    `data` is the folder of the self-play data. `make_probe` builds the function that measures the
    model on held-out puzzles at each validation. Without it, validation uses only the validation
    examples.
    """
    limit_kernel_caches()
    device = pick_device(cfg)
    model, template = load_model(cfg, stage.resume_from, device)
    examples = make_data(cfg, template, data)
    learner = make_learner(cfg, model, template, examples.steps, stage.resume_from, device)
    probe = make_probe(learner, stage.recorder) if make_probe else None
    train_sft(cfg, stage, learner, examples, probe)


def load_model(cfg: Config, resume: Path | None, device: torch.device) -> tuple[Any, ChatTemplate]:
    """Load the policy and its chat template from the checkpoint `resume` if given, otherwise from
    `sft.model.partial_pretrain`."""
    own = cfg.sft.model
    return build_policy(
        cfg, own.partial_pretrain, device, own, seed=cfg.sft.trainer.seed, resume=resume
    )


def make_learner(
    cfg: Config,
    model: Any,
    template: ChatTemplate,
    steps: int,
    resume: Path | None,
    device: torch.device,
) -> Learner:
    """Combine the model with its optimizer, for `steps` steps. If the checkpoint `resume` is given,
    load the state of the optimizer from it."""
    own = cfg.sft
    check_optimizer(own.optim.name, own.model.strategy)
    policy = trainable(
        model,
        lambda: sft_optimizer(model, own.optim, steps),
        device,
        dtype=own.model.dtype,
        strategy=own.model.strategy,
        sharding=own.model.fsdp_config,
        grad_clip=own.optim.clip_grad,
        played=True,
    )
    if resume:
        policy.optimizer.load_state_dict(load_state(resume)["optimizer"])
    tokens = own.data.max_token_len_per_gpu
    micro = MicroBatching(
        rows=own.data.micro_batch_size_per_gpu,
        max_tokens=tokens if isinstance(tokens, int) else None,
    )
    return Learner(policy=policy, template=template, micro=micro, device=device)


def sft_fingerprint(cfg: Config, data: Path | None) -> Fingerprint:
    """Return the fingerprint of stage 2 when it runs alone, on the configured data set or the one
    in `data`.

    It includes the fingerprint of the self-play stage that made the data, or the content of the
    data if spa did not make it. Data of a later self-play round are also included by content. Their
    fingerprint covers the model of the round before, but this stage does not start from that model.
    """
    folder = find_data(cfg, data)
    named = cfg.sft.data.train_files or cfg.data.train_files

    def made_by() -> dict[str, Any] | None:
        if not named:
            result_of(folder)  # raises if the files differ from the manifest
        made = Manifest.read(folder)
        return (
            made.fingerprint.to_json()
            if made is not None and made.fingerprint.parent is None
            else None
        )

    known = current_world().broadcast(made_by)
    parent = Fingerprint.from_json(known) if known else None
    return stage_fingerprint(cfg, "sft", parent=parent, data=None if parent or named else folder)

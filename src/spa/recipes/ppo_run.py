"""Stage 3 put together: the models, the environments and the folder that `train_ppo` works with."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from spa.algo.health import Health
from spa.algo.kl import KLController
from spa.algo.losses import policy_loss_named
from spa.config.schema import Config, OptimConfig
from spa.engines.factory import EngineRequest, trained_kind
from spa.errors import ModelError
from spa.models.allocator import limit_kernel_caches
from spa.models.load import load_critic
from spa.models.lora import ADAPTER, has_adapters
from spa.planning.requirements import require_state_value
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.parallel import parallelize
from spa.recipes.ppo import train_ppo
from spa.recipes.ppo_models import Models, keys_of, named_estimator
from spa.recipes.ppo_replay import replayed_data
from spa.recipes.ppo_rollouts import make_rollouts
from spa.recipes.published import note_published
from spa.run.checkpoint import load_state
from spa.run.fingerprint import Fingerprint
from spa.run.hashing import stage_fingerprint
from spa.run.stage import Stage
from spa.training.optim import Optimizer, make_optimizer, warmup_constant, warmup_cosine
from spa.training.update import Scorer, Trainable


def run_ppo(
    cfg: Config,
    *,
    model_path: str | None = None,
    directory: Path | None = None,
    fingerprint: Fingerprint | None = None,
    alone: bool = True,
) -> Path:
    """Train from `model_path` (default: the configuration's) in `directory`; returns the last
    checkpoint.

    `alone`: it is not a part of a run of all stages, so `trainer.resume_mode` makes it begin again
    when it is finished.
    """
    trainer = cfg.trainer
    # The fingerprint must name the model that PPO really starts from.
    started = replace(cfg, model_path=model_path or cfg.model_path)
    with Stage(
        cfg,
        directory or Path(trainer.default_local_dir),
        fingerprint or stage_fingerprint(started, "ppo", data=replayed_data(cfg)),
        total=trainer.total_training_steps,
        keep=trainer.max_actor_ckpt_to_keep,
        resume_path=trainer.resume_from_path if trainer.resume_mode == "resume_path" else None,
        again=alone and trainer.resume_mode != "auto",
        trackers=setup.trackers_of(cfg),
    ) as stage:
        if stage.result is not None:
            return stage.result
        # The limit has an effect only before the first kernel runs.
        limit_kernel_caches()
        models, template = load_models(started, stage.resume_from)
        return train_ppo(started, stage, models, make_rollouts(started, stage, models, template))


def check_trained(cfg: Config) -> None:
    """Raises ConfigError if PPO cannot train with the estimator, the loss or the engine that are
    named."""
    named_estimator(cfg)
    trained_kind(cfg)
    policy_loss_named(cfg.actor_rollout_ref.actor.policy_loss, keys_of(cfg.actor_rollout_ref.actor))


def require_state_values(cfg: Config) -> None:
    """Raises ConfigError if `algorithm.imagined_advantage` is set and an environment has no state
    values."""
    if cfg.algorithm.imagined_advantage > 0:
        check = partial(require_state_value, instead="set algorithm.imagined_advantage to 0")
        setup.check_puzzles(cfg, cfg.es_manager.train.env_configs.tags, check)


def load_models(cfg: Config, resume: Path | None = None) -> tuple[Models, ChatTemplate]:
    """Policy, critic, reference and engine from `model_path`, or as they were at the checkpoint
    `resume`; also the policy's chat template."""
    device = setup.pick_device(cfg)
    path = cfg.model_path
    require_state_values(cfg)
    check_trained(cfg)
    note_published(path)
    model_cfg = cfg.actor_rollout_ref.model
    actor_cfg = cfg.actor_rollout_ref.actor
    total = cfg.trainer.total_training_steps
    # A resumed run with LoRA loads the model that it began with and adds the saved adapters.
    # Without LoRA it loads the saved weights.
    source = str(resume) if resume and model_cfg.lora_rank == 0 else path
    policy, template = setup.load_actor(cfg, source, device)
    setup.make_trainable(
        policy,
        model_cfg,
        device,
        seed=cfg.seed.train,
        adapters=resume / ADAPTER if resume else None,
    )
    autocast = setup.pick_autocast(model_cfg.dtype, device)
    # This comes before the optimizer is made, since shards are new parameters.
    parallel = parallelize(
        policy, actor_cfg.strategy, actor_cfg.fsdp_config, autocast=autocast, played=True
    )
    actor = Trainable(
        model=policy,
        parallel=parallel,
        optimizer=optimizer_of(policy, actor_cfg.optim, total),
        grad_clip=actor_cfg.grad_clip,
        autocast=autocast,
    )
    critic = None
    if named_estimator(cfg).needs_values:
        if resume and not (resume / "critic").is_dir():
            raise ModelError(
                f"{resume} has no critic, which adv_estimator={cfg.algorithm.adv_estimator} needs. Start "
                f"from its weights with model_path={resume}."
            )
        critic = make_critic(cfg, path, resume, device)
    # Without a KL term a reference model would cost memory and a forward pass for nothing.
    wants_ref = (
        actor_cfg.use_kl_loss and actor_cfg.kl_loss_coef > 0
    ) or cfg.algorithm.use_kl_in_reward
    ref = None
    if wants_ref and actor_cfg.use_ref:
        ref_cfg = cfg.actor_rollout_ref.ref
        # With LoRA the frozen base is the reference: adapters
        # are switched off, and no second copy is loaded.
        if has_adapters(policy):
            ref = Scorer(model=policy, parallel=parallel, autocast=autocast, without_adapters=True)
        else:
            frozen = setup.load_actor(cfg, path, device)[0]
            parallel = parallelize(
                frozen, ref_cfg.strategy, ref_cfg.fsdp_config, autocast=autocast, trained=False
            )
            ref = Scorer(model=frozen, parallel=parallel, autocast=autocast)
    ctrl = cfg.algorithm.kl_ctrl
    kl = KLController(
        coef=ctrl.kl_coef,
        target=ctrl.target_kl if ctrl.type == "adaptive" else None,
        horizon=ctrl.horizon,
    )
    engine = trained_kind(cfg).make(
        EngineRequest(
            cfg=cfg, model_name=source, device=device, model=actor.full_model(), template=template
        )
    )
    models = Models(
        actor=actor,
        critic=critic,
        ref=ref,
        engine=engine,
        tokenizer=template,
        sampling=setup.train_sampling(cfg),
        device=device,
        kl=kl,
    )
    if resume:
        state = load_state(resume)
        actor.optimizer.load_state_dict(state["actor"])
        if critic is not None:
            critic.optimizer.load_state_dict(state["critic"])
        # What the adaptive controller has reached is restored; a run without KL has saved 0.
        if kl.target is not None:
            models.kl = replace(kl, coef=state["kl_coef"] or kl.coef)
        models.health = Health.from_state(state["health"]) if "health" in state else Health()
    return models, template


def make_critic(cfg: Config, path: str, resume: Path | None, device: torch.device) -> Trainable:
    """The critic with its optimizer: a new head on the body of `path`, or the one saved at
    `resume`."""
    critic_cfg = cfg.critic
    saved = resume / "critic" if resume else None
    weights = saved if critic_cfg.model.lora_rank == 0 else None
    # A model with Python code of its own names no class for a body alone.
    own_code = critic_cfg.model.trust_remote_code
    source = str(weights) if weights and not own_code else path
    model = load_critic(
        source,
        attention=setup.pick_attention(
            critic_cfg.model.attn_implementation,
            source,
            device,
            critic_cfg.model.dtype,
            code=own_code,
        ),
        trust_remote_code=own_code,
    ).to(device)
    if weights and own_code:
        model.load_body(weights)
    adapters = saved / ADAPTER if saved else None
    # The critic has a seed of its own: new adapters of policy and critic start from different
    # matrices.
    setup.make_trainable(
        model, critic_cfg.model, device, seed=cfg.seed.train + 1, adapters=adapters
    )
    # With adapters the body comes from `path`, so the saved head is loaded separately.
    if saved is not None:
        model.load_head(saved)
    autocast = setup.pick_autocast(critic_cfg.model.dtype, device)
    return Trainable(
        model=model,
        parallel=parallelize(
            model, critic_cfg.strategy, critic_cfg.model.fsdp_config, autocast=autocast
        ),
        optimizer=optimizer_of(model, critic_cfg.optim, cfg.trainer.total_training_steps),
        grad_clip=critic_cfg.grad_clip,
        autocast=autocast,
    )


def optimizer_of(model: nn.Module, optim: OptimConfig, total: int) -> Optimizer:
    """AdamW with the configured schedule. Like its `total`, warm-up and schedule count PPO steps,
    whatever number of mini-batches a step has."""
    # With -1, the default, the ratio sets the warm-up.
    warmup = (
        optim.lr_warmup_steps
        if optim.lr_warmup_steps >= 0
        else int(total * optim.lr_warmup_steps_ratio)
    )
    if optim.warmup_style == "cosine":
        schedule = warmup_cosine(total, warmup, floor=optim.min_lr_ratio or 0.0)
    else:
        schedule = warmup_constant(warmup)
    return make_optimizer(
        model, lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay, schedule=schedule
    )

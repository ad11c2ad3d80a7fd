"""Build and run stage 3: the models, the environments and the folder for `train_ppo`."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from spa.algo.health import Health
from spa.algo.losses import KLController, policy_loss_named
from spa.config.schema import Config
from spa.engines.factory import EngineRequest, trained_kind
from spa.errors import ModelError
from spa.methods.context import examples_folder
from spa.models.allocator import limit_kernel_caches
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.build import (
    build_critic,
    build_policy,
    build_reference,
    ppo_optimizer,
    trainable,
    weights_source,
)
from spa.recipes.ppo import train_ppo
from spa.recipes.ppo_models import Models, keys_of, named_estimator
from spa.recipes.ppo_rollouts import make_rollouts
from spa.run.checkpoint import load_state
from spa.run.fingerprint import Fingerprint
from spa.run.hashing import stage_fingerprint
from spa.run.stage import Stage
from spa.run.trackers import trackers_of


def run_ppo(
    cfg: Config,
    *,
    model_path: str | None = None,
    directory: Path | None = None,
    fingerprint: Fingerprint | None = None,
    alone: bool = True,
) -> Path:
    """Run PPO from the model `model_path` (by default the configured one) in the folder
    `directory`; return the last checkpoint.

    Set `alone` if PPO runs outside a run of all stages. A finished stage then runs again, unless
    `trainer.resume_mode` is auto.
    """
    trainer = cfg.trainer
    # The fingerprint must include the model from which PPO starts, not the configured one.
    started = replace(cfg, model_path=model_path or cfg.model_path)
    with Stage(
        cfg,
        directory or Path(trainer.default_local_dir),
        fingerprint or stage_fingerprint(started, "ppo", data=examples_folder(cfg)),
        total=trainer.total_training_steps,
        keep=trainer.max_actor_ckpt_to_keep,
        resume_path=trainer.resume_from_path if trainer.resume_mode == "resume_path" else None,
        again=alone and trainer.resume_mode != "auto",
        trackers=trackers_of(cfg),
    ) as stage:
        if stage.result is not None:
            return stage.result
        # The limit takes effect only if it is set before the first kernel runs.
        limit_kernel_caches()
        models, template = load_models(started, stage.resume_from)
        return train_ppo(started, stage, models, make_rollouts(started, stage, models, template))


def check_trained(cfg: Config) -> None:
    """Raise ConfigError if PPO cannot train with the configured estimator, loss or engine."""
    named_estimator(cfg)
    trained_kind(cfg)
    policy_loss_named(cfg.actor_rollout_ref.actor.policy_loss, keys_of(cfg.actor_rollout_ref.actor))


def require_state_values(cfg: Config) -> None:
    """Raise ConfigError if `algorithm.imagined_advantage` is set and an environment has no state
    values."""
    if cfg.algorithm.imagined_advantage > 0:
        check = partial(setup.require_state_value, instead="set algorithm.imagined_advantage to 0")
        setup.check_puzzles(cfg, cfg.es_manager.train.env_configs.tags, check)


def load_models(cfg: Config, resume: Path | None = None) -> tuple[Models, ChatTemplate]:
    """Load policy, critic, reference and engine, from the checkpoint `resume` if given, otherwise
    from `model_path`; also return the policy's chat template."""
    device = setup.pick_device(cfg)
    path = cfg.model_path
    require_state_values(cfg)
    check_trained(cfg)
    model_cfg = cfg.actor_rollout_ref.model
    actor_cfg = cfg.actor_rollout_ref.actor
    total = cfg.trainer.total_training_steps
    policy, template = build_policy(
        cfg, path, device, model_cfg, seed=cfg.seed.train, resume=resume
    )
    actor = trainable(
        policy,
        lambda: ppo_optimizer(policy, actor_cfg.optim, total),
        device,
        dtype=model_cfg.dtype,
        strategy=actor_cfg.strategy,
        sharding=actor_cfg.fsdp_config,
        grad_clip=actor_cfg.grad_clip,
        played=True,
    )
    critic = None
    if named_estimator(cfg).needs_values:
        if resume and not (resume / "critic").is_dir():
            raise ModelError(
                f"{resume} has no critic, which adv_estimator={cfg.algorithm.adv_estimator} needs. Start "
                f"from its weights with model_path={resume}."
            )
        # The critic has its own seed, so that new adapters of policy and critic start from
        # different matrices.
        critic = build_critic(
            cfg.critic, path, device, total, seed=cfg.seed.train + 1, resume=resume
        )
    # Without a KL term a reference model would cost memory and a forward pass for nothing.
    wants_ref = cfg.has_kl_term() and actor_cfg.use_ref
    ref = build_reference(cfg, actor, device) if wants_ref else None
    ctrl = cfg.algorithm.kl_ctrl
    kl = KLController(
        coef=ctrl.kl_coef,
        target=ctrl.target_kl if ctrl.type == "adaptive" else None,
        horizon=ctrl.horizon,
    )
    engine = trained_kind(cfg).make(
        EngineRequest(
            cfg=cfg,
            model_name=weights_source(path, resume, model_cfg),
            device=device,
            model=actor.full_model(),
            template=template,
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
        # An adaptive controller resumes with its saved coefficient. If that is 0, because the
        # checkpoint's run had no KL term, the controller starts from the configured one.
        if kl.target is not None:
            models.kl = replace(kl, coef=state["kl_coef"] or kl.coef)
        models.health = Health.from_state(state["health"]) if "health" in state else Health()
    return models, template

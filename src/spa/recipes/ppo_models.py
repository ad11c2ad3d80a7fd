"""What PPO trains and plays with: policy, critic, reference, engine, loaded and saved together."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from spa.algo.advantages import NEEDS_VALUES
from spa.algo.kl import KLController
from spa.config.schema import Config, OptimConfig
from spa.engines.local import LocalEngine
from spa.models.load import load_critic, load_policy, save_activations
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.training.checkpoint import load_state, save_checkpoint
from spa.training.optim import Optimizer, make_optimizer, warmup_constant, warmup_cosine
from spa.training.update import Scorer, Trainable


@dataclass(slots=True, kw_only=True)
class Models:
    """What a PPO step uses. `critic` is None for estimators without values, `ref` unless a KL term wants it."""

    actor: Trainable
    critic: Trainable | None
    ref: Scorer | None
    engine: LocalEngine
    template: ChatTemplate
    kl: KLController


def load_models(cfg: Config, path: str, resume: Path | None, device: torch.device) -> Models:
    """Policy, critic, reference and engine; after a crash, as they were at the checkpoint `resume`."""
    source = str(resume) if resume else path
    policy, template = setup.load_actor(cfg, source, device)
    model_cfg, actor_cfg, critic_cfg = cfg.actor_rollout_ref.model, cfg.actor_rollout_ref.actor, cfg.critic
    autocast = setup.pick_autocast(model_cfg.dtype, device)
    attention = setup.pick_attention(model_cfg.attn_implementation, source, device)
    if model_cfg.enable_gradient_checkpointing:
        save_activations(policy)
    total = cfg.trainer.total_training_steps
    actor = Trainable(
        model=policy,
        optimizer=optimizer_of(policy, actor_cfg.optim, total),
        grad_clip=actor_cfg.grad_clip,
        autocast=autocast,
    )
    critic = None
    if cfg.algorithm.adv_estimator in NEEDS_VALUES or ":" in cfg.algorithm.adv_estimator:
        value_model = load_critic(str(resume / "critic") if resume else path, attention=attention).to(device)
        if critic_cfg.model.enable_gradient_checkpointing:
            save_activations(value_model.body)
        critic = Trainable(
            model=value_model,
            optimizer=optimizer_of(value_model, critic_cfg.optim, total),
            grad_clip=critic_cfg.grad_clip,
            autocast=setup.pick_autocast(critic_cfg.model.dtype, device),
        )
    wants_ref = (actor_cfg.use_kl_loss and actor_cfg.kl_loss_coef > 0) or cfg.algorithm.use_kl_in_reward
    ref = None
    if wants_ref and actor_cfg.use_ref:
        ref = Scorer(model=load_policy(path, attention=attention).to(device), autocast=autocast)
    ctrl = cfg.algorithm.kl_ctrl
    kl = KLController(
        coef=ctrl.kl_coef, target=ctrl.target_kl if ctrl.type == "adaptive" else None, horizon=ctrl.horizon
    )
    rollout = cfg.actor_rollout_ref.rollout
    engine = LocalEngine(policy, template, max_rows=rollout.max_num_seqs, autocast=setup.engine_autocast(cfg, device))
    models = Models(actor=actor, critic=critic, ref=ref, engine=engine, template=template, kl=kl)
    if resume:
        state = load_state(resume)
        actor.optimizer.load_state_dict(state["actor"])
        if critic is not None:
            critic.optimizer.load_state_dict(state["critic"])
        models.kl = replace(kl, coef=state["kl_coef"])
    return models


def optimizer_of(model: nn.Module, optim: OptimConfig, total: int) -> Optimizer:
    """AdamW with the configured schedule over `total` PPO steps."""
    warmup = optim.lr_warmup_steps if optim.lr_warmup_steps >= 0 else int(total * optim.lr_warmup_steps_ratio)
    if optim.warmup_style == "cosine":
        schedule = warmup_cosine(total, warmup / max(1, total), floor=optim.min_lr_ratio or 0.0)
    else:
        schedule = warmup_constant(warmup)
    return make_optimizer(model, lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay, schedule=schedule)


def save_models(cfg: Config, directory: Path, step: int, models: Models) -> Path:
    """A checkpoint of everything that training needs to go on."""
    state = {"actor": models.actor.optimizer.state_dict(), "kl_coef": models.kl.coef}
    if models.critic is not None:
        state["critic"] = models.critic.optimizer.state_dict()
    return save_checkpoint(
        directory,
        step,
        model=models.actor.model,
        tokenizer=models.template.tokenizer,
        critic=models.critic.model if models.critic is not None else None,
        state=state,
        keep=cfg.trainer.max_actor_ckpt_to_keep,
    )

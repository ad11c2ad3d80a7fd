"""Models of PPO: policy, critic, reference and engine, saved together."""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch

from spa.algo.estimators import Estimator, estimator_named
from spa.algo.health import Health
from spa.algo.losses import KLController
from spa.config.schema import Config
from spa.errors import ConfigError
from spa.run.stage import Snapshot
from spa.training.update import Scorer, Trainable
from spa.types import Engine, SamplingParams


@dataclass(slots=True, kw_only=True)
class Models:
    """Models of a PPO step, and their changing state.

    `critic` is None for estimators without values, and `ref` is None without a KL term. `sampling`
    defines the sampling distribution of the rollouts. Scoring and training compute log-probs under
    the same distribution.
    """

    actor: Trainable
    critic: Trainable | None
    ref: Scorer | None
    engine: Engine
    tokenizer: Any  # saved with the policy
    sampling: SamplingParams
    device: torch.device
    kl: KLController
    health: Health = field(default_factory=Health)

    def set_learning_rates(self, step: int) -> None:
        """Set the learning rates of this step, counted from 1."""
        for part in (self.critic, self.actor):
            if part is not None:
                part.optimizer.at(step - 1)

    def snapshot(self) -> Snapshot:
        """Return everything that PPO needs to resume. Collective: every rank must call it."""
        state = {
            "actor": self.actor.state(),
            "kl_coef": self.kl.coef,
            "health": self.health.state(),
        }
        model = self.actor.full_model()
        critic = None
        if self.critic is not None:
            state["critic"] = self.critic.state()
            critic = self.critic.full_model()
        return Snapshot(model=model, tokenizer=self.tokenizer, critic=critic, state=state)


def keys_of(section: Any) -> set[str]:
    """Names of a configuration section's own settings, without its subsections."""
    return {f.name for f in fields(section) if not is_dataclass(getattr(section, f.name))}


def named_estimator(cfg: Config) -> Estimator:
    """The configured estimator. Raises ConfigError if it is incompatible with other settings."""
    name = cfg.algorithm.adv_estimator
    estimator = estimator_named(name, keys_of(cfg.algorithm))
    if cfg.algorithm.bootstrap_truncated and not estimator.needs_values:
        raise ConfigError(
            "algorithm.bootstrap_truncated needs a critic, but "
            f"algorithm.adv_estimator={name} trains no critic; set bootstrap_truncated=false, "
            "or use an estimator with a critic, such as gae or turn_gae"
        )
    if cfg.trainer.critic_warmup and not estimator.needs_values:
        raise ConfigError(
            f"trainer.critic_warmup must be 0 with algorithm.adv_estimator={name}, which has no "
            f"critic: the policy would not be trained for {cfg.trainer.critic_warmup} steps"
        )
    if estimator.needs_groups and not cfg.ctx_manager.history:
        raise ConfigError(
            f"algorithm.adv_estimator={name} compares the episodes of a group and needs "
            "ctx_manager.history=true: without it, an episode would be compared with its own turns"
        )
    if cfg.es_manager.train.group_size == 1 and estimator.needs_groups:
        raise ConfigError(
            f"algorithm.adv_estimator={name} compares the episodes of a group, but "
            "es_manager.train.group_size is 1; set it to 2 or more"
        )
    return estimator

"""Stage 3: multi-turn PPO (arXiv 1707.06347; SPA, arXiv 2510.15047).

One step plays episodes, filters groups by reward variance, computes log-probs and values, and
estimates advantages. It then adds the annotations of the configured methods, and updates critic and
policy. `train_ppo` is the whole loop; the functions that it calls on a batch are in `ppo_batch`.
`ppo_run` loads the models and builds the rollouts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from spa.config.schema import Config
from spa.models.allocator import release_memory
from spa.recipes.ppo_batch import (
    add_advantages,
    check_sampler,
    filter_groups,
    mini_batches,
    prefixed,
    score,
    training_cut,
)
from spa.recipes.ppo_health import empty_steps, warn_of_health
from spa.recipes.ppo_losses import ActorLoss, CriticLoss
from spa.recipes.ppo_models import Models
from spa.run.stage import Stage
from spa.training.batch import token_scores
from spa.training.update import update
from spa.types import Episode, EpisodeBatch, Metrics, PPOBatch

SHOWN_EPISODES = 32  # episodes per step whose advantages and values are kept for the viewer


class Rollouts(Protocol):
    """Interface of the PPO loop to the environments: episodes, batches and validation."""

    def play(self, step: int) -> list[Episode]:
        """Play the episodes of a step with the policy."""
        ...

    def metrics(self, episodes: Sequence[Episode]) -> Metrics:
        """Compute rollout metrics."""
        ...

    def batch(self, episodes: Sequence[Episode]) -> EpisodeBatch | None:
        """Return the episodes as tensors with normalized rewards; None if all of them failed."""
        ...

    def annotate(
        self, batch: PPOBatch, episodes: Sequence[Episode], step: int, metrics: Metrics
    ) -> PPOBatch:
        """Return the batch with the token weights and replayed examples of the configured methods.
        Adds their metrics to `metrics`."""
        ...

    def validate(self, step: int) -> Metrics:
        """Play and record the validation puzzles; return their metrics."""
        ...


def train_ppo(cfg: Config, stage: Stage, models: Models, rollouts: Rollouts) -> Path:
    """Run multi-turn PPO: rollout -> filter groups -> score -> advantages -> critic, actor -> sync
    weights. Returns the last checkpoint.

    With several ranks, each plays, scores and trains on its own share, but all run this same loop.
    If the process is asked to stop, saves a checkpoint and raises StopRequested.
    """
    actor = cfg.actor_rollout_ref.actor
    critic = cfg.critic
    # Every sampled episode records the step of the weights (`Episode.version`).
    models.engine.load_weights(models.actor.full_model(), version=stage.step)
    # A resumed run already has this measurement.
    if stage.step == 0 and cfg.trainer.val_before_train:
        with stage.interruptible("validate"):
            metrics = rollouts.validate(0)
        stage.recorder.log(0, metrics)
    empty = 0
    for step in stage.steps(cfg.trainer.total_training_steps, save_every=cfg.trainer.save_freq):
        # Nothing is updated here, so a stop may abort the rollout: a resumed run plays it again.
        with stage.interruptible("rollout"):
            episodes = rollouts.play(step)
        empty = empty_steps(episodes, empty)
        # Metrics cover all episodes, since the filter would bias success and format rates.
        metrics = rollouts.metrics(episodes)
        batch = filter_groups(cfg, rollouts.batch(episodes), metrics)
        if batch is not None:  # None if no group has reward variance or every episode failed
            with stage.timer("score"):
                # Old log-probs come from the trainer, not the engine, so that the first ratio is 1
                # even if the engine's numerics differ.
                batch = score(cfg, models, batch, metrics)
                check_sampler(cfg, metrics["rollout/mismatch_kl"], models, step)
                batch = add_advantages(cfg, models, batch, metrics)
                batch = rollouts.annotate(batch, episodes, step, metrics)
            with stage.timer("update"):
                # Schedules count PPO steps: all mini-batches of a step have the same learning rate.
                models.set_learning_rates(step)
                if models.critic is not None:
                    minis = mini_batches(cfg, critic, batch, step)
                    loss = CriticLoss(critic)
                    critic_metrics = update(
                        models.critic, minis, loss, training_cut(critic), models.device
                    )
                    metrics |= prefixed("critic", critic_metrics)
                # During warm-up only the critic learns, because the advantages of an untrained
                # critic would mislead the policy.
                if step > cfg.trainer.critic_warmup:
                    minis = mini_batches(cfg, actor, batch, step)
                    loss = ActorLoss(actor, models.sampling, replayed=not batch.played.all())
                    actor_metrics = update(
                        models.actor, minis, loss, training_cut(actor), models.device
                    )
                    metrics |= prefixed("actor", actor_metrics)
            # The viewer shows advantages, returns and values per token.
            stage.recorder.token_scores(
                step, "train", token_scores(batch, episodes[:SHOWN_EPISODES])
            )
        # The engine gets the step even if nothing was updated: episodes record the step as the
        # version of the weights, and validation below plays with this version.
        models.engine.load_weights(models.actor.full_model(), version=step)
        release_memory()
        if stage.due(step, cfg.trainer.test_freq) or step == cfg.trainer.also_test_at:
            with stage.timer("validate"):
                metrics |= rollouts.validate(step)
        warn_of_health(models, step, metrics)
        stage.commit(step, metrics, episodes, models)
    models.engine.close()
    return stage.finish()

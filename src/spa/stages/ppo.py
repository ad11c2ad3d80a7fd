"""Stage 3: multi-turn PPO (arXiv 1707.06347; SPA, arXiv 2510.15047).

One step: play, keep the groups that differ, score, estimate advantages, let the methods annotate,
update critic and policy. `train_ppo` is the whole loop. Its steps are in `ppo_batch` (episodes to
a batch with advantages) and `ppo_updates` (mini-batches).
"""

from dataclasses import replace
from pathlib import Path

from spa.config.schema import Config
from spa.evaluation.search import rollout_metrics
from spa.models.allocator import limit_kernel_caches, release_memory
from spa.run.fingerprint import Fingerprint
from spa.run.hashing import stage_fingerprint
from spa.run.stage import Stage
from spa.stages import setup
from spa.stages.ppo_batch import (
    add_advantages,
    annotate_batch,
    check_sampler,
    filter_groups,
    make_batch,
    score,
)
from spa.stages.ppo_health import empty_steps, warn_of_health
from spa.stages.ppo_losses import ActorLoss, CriticLoss
from spa.stages.ppo_models import load_models
from spa.stages.ppo_replay import replayed_data
from spa.stages.ppo_updates import mini_batches, prefixed, training_cut
from spa.stages.validation import validate
from spa.training.token_scores import token_scores
from spa.training.update import update

SHOWN_EPISODES = 32  # episodes per step whose advantages and values are kept for the viewer


def run_ppo(
    cfg: Config,
    *,
    model_path: str | None = None,
    directory: Path | None = None,
    fingerprint: Fingerprint | None = None,
) -> Path:
    """Train from `model_path` (default: the configuration's) in `directory`; returns the last
    checkpoint.

    Without a `fingerprint` it is a stage alone, which `trainer.resume_mode` makes begin again when
    it is finished.
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
        again=fingerprint is None and trainer.resume_mode != "auto",
    ) as stage:
        return stage.result or train_ppo(started, stage)


def train_ppo(cfg: Config, stage: Stage) -> Path:
    """Multi-turn PPO: rollout -> filter groups -> score -> advantages -> critic, actor -> sync
    weights.

    With several ranks each plays, scores and trains on its share; everything here is the same on
    all. Raises StopRequested, when it has saved what there is, if the process is asked to stop.
    """
    limit_kernel_caches()
    actor = cfg.actor_rollout_ref.actor
    critic = cfg.critic
    sampling = setup.train_sampling(cfg)
    models = load_models(cfg, stage.resume_from)
    # The step of the weights goes into every episode that they sample (`Episode.version`).
    models.engine.load_weights(models.actor.full_model(), version=stage.step)
    worker = setup.make_worker(
        cfg, models.template, mode=cfg.ctx_manager.mode, lost=stage.lost_episodes, own_rewards=True
    )
    # Training never samples a puzzle of validation; contents
    # are compared, since two seeds can make the same board.
    held_out = setup.validation_hashes(cfg, worker)
    # A resumed run has this measurement already.
    if stage.step == 0 and cfg.trainer.val_before_train:
        with stage.interruptible("validate"):
            metrics = validate(cfg, worker, models.engine, stage.recorder, 0)
        stage.recorder.log(0, metrics)
    empty = 0
    for step in stage.steps(cfg.trainer.total_training_steps, save_every=cfg.trainer.save_freq):
        # Nothing is updated here, so a stop may break
        # the rollout off: a resumed run plays it again.
        with stage.interruptible("rollout"):
            specs = setup.training_specs(cfg, worker, "train", step=step - 1, held_out=held_out)
            episodes = worker.rollout(models.engine, specs, sampling)
        empty = empty_steps(episodes, empty)
        # Over all episodes: the filter would bias success and format rates.
        metrics = rollout_metrics(episodes, worker.make_env, "train")
        batch = filter_groups(cfg, make_batch(cfg, episodes, models.template), metrics)
        if batch is not None:  # None: no group has any reward variance
            with stage.timer("score"):
                # Old log-probs are the trainer's, not the engine's, so
                # that the first ratio is 1 whatever the engine's numerics.
                batch = score(cfg, models, batch, metrics)
                check_sampler(cfg, metrics["rollout/mismatch_kl"], models, step)
                batch = add_advantages(cfg, models, batch, metrics)
                batch = annotate_batch(cfg, models, batch, episodes, metrics, step)
            with stage.timer("update"):
                # Schedules count PPO steps: all mini-batches of a step have one learning rate.
                models.set_learning_rates(step)
                if models.critic is not None:
                    minis = mini_batches(cfg, critic, batch, step)
                    loss = CriticLoss(critic)
                    found = update(models.critic, minis, loss, training_cut(critic), models.device)
                    metrics |= prefixed("critic", found)
                # Until then the critic learns alone: the advantages
                # of an untrained one would mislead the policy.
                if step > cfg.trainer.critic_warmup:
                    minis = mini_batches(cfg, actor, batch, step)
                    loss = ActorLoss(actor, sampling, replayed=not batch.played.all())
                    found = update(models.actor, minis, loss, training_cut(actor), models.device)
                    metrics |= prefixed("actor", found)
            # For the viewer: which token got which advantage.
            stage.recorder.token_scores(
                step, "train", token_scores(batch, episodes[:SHOWN_EPISODES])
            )
        # Also after a step without an update: the version
        # is the step, and validation below plays with it.
        models.engine.load_weights(models.actor.full_model(), version=step)
        release_memory()
        if stage.due(step, cfg.trainer.test_freq) or step == cfg.trainer.also_test_at:
            with stage.timer("validate"):
                metrics |= validate(cfg, worker, models.engine, stage.recorder, step)
        warn_of_health(models, step, metrics)
        stage.commit(step, metrics, episodes, models)
    models.engine.close()
    return stage.finish()

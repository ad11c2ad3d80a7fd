"""Stage 3: multi-turn PPO (arXiv 1707.06347; SPA, arXiv 2510.15047).

One step: play, keep the groups that differ, score, estimate advantages, let the methods annotate,
update critic and policy. Read `train_ppo` from top to bottom; everything it calls is a pure
function or one of the things it holds: an engine and two models.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import torch

from spa.algo.advantages import length_weighted
from spa.algo.filters import FILTERS, select_groups
from spa.algo.health import StepHealth
from spa.algo.kl import kl_in_reward
from spa.algo.losses import kl_penalty
from spa.algo.masked import explained_variance, masked_mean, mean_per_row, whiten
from spa.algo.rewards import normalize_rewards, normalize_scores
from spa.algo.sampled import rollout_weights
from spa.config.schema import ActorConfig, Config, CriticConfig
from spa.envs.lost import LOST
from spa.errors import TrainingError
from spa.evaluation.episode_metrics import episode_metrics, tokens_in
from spa.evaluation.search import episode_search_metrics
from spa.methods import Context, annotate
from spa.models.heap import limit_kernel_caches, release_memory
from spa.prompts.template import ChatTemplate
from spa.run.fingerprint import Fingerprint
from spa.run.stage import Stage, stage_fingerprint
from spa.seeds import torch_stream
from spa.stages import setup
from spa.stages.ppo_losses import ActorLoss, CriticLoss
from spa.stages.ppo_models import Models, load_models, named_estimator
from spa.stages.ppo_replay import replayed_data
from spa.stages.validation import validate
from spa.training.batch import batch_episodes, is_trainable, select, split_turns
from spa.training.loss_masks import loss_masks
from spa.training.token_scores import token_scores
from spa.training.update import (
    MicroBatching,
    mini_batch,
    plan_mini_batches,
    score_entropies,
    score_last_values,
    score_logprobs,
    score_values,
    update,
)
from spa.types import Episode, EpisodeBatch, Metrics, MiniBatch, PPOBatch, ScoredBatch, Stop
from spa.worldmodel.online import with_world_model_reward

log = logging.getLogger(__name__)

MOST_BARREN_STEPS = 3  # in a row, without a single episode that could be played
SHOWN_EPISODES = 32  # episodes per step whose advantages and values are kept for the viewer


def main(
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
    models.engine.load_weights(models.actor.full_model(), version=stage.step)
    player = setup.make_player(
        cfg, models.template, mode=cfg.ctx_manager.mode, lost=stage.folder / LOST, own_rewards=True
    )
    held_out = setup.validation_hashes(cfg, player)
    if stage.step == 0 and cfg.trainer.val_before_train:
        with stage.interruptible("validate"):
            metrics = validate(cfg, player, models.engine, stage.recorder, 0)
        stage.recorder.log(0, metrics)
    barren = 0
    for step in stage.steps(cfg.trainer.total_training_steps, save_every=cfg.trainer.save_freq):
        with stage.interruptible("rollout"):
            specs = setup.training_specs(cfg, player, "train", step=step - 1, held_out=held_out)
            episodes = player.play(models.engine, specs, sampling)
        barren = barren_steps(episodes, barren)
        metrics = episode_metrics(episodes, "train") | episode_search_metrics(
            episodes, player.make_env, "train"
        )
        batch = filter_groups(cfg, make_batch(cfg, episodes, models.template), metrics)
        if batch is not None:  # None: no group has any reward variance
            with stage.timer("score"):
                batch = score(cfg, models, batch, metrics)
                check_sampler(cfg, metrics["rollout/kl_trainer_sampler"], models, step)
                batch = add_advantages(cfg, models, batch, metrics)
                batch = annotate(batch, episodes, method_context(cfg, models, step, metrics))
            with stage.timer("update"):
                if models.critic is not None:
                    models.critic.optimizer.at(step - 1)
                    minis = mini_batches(cfg, critic, batch, step)
                    found = update(
                        models.critic,
                        minis,
                        CriticLoss(critic),
                        training_cut(critic),
                        models.device,
                    )
                    metrics |= prefixed("critic", found)
                if step > cfg.trainer.critic_warmup:
                    models.actor.optimizer.at(step - 1)
                    minis = mini_batches(cfg, actor, batch, step)
                    loss = ActorLoss(actor, sampling, replayed=not batch.played.all())
                    found = update(models.actor, minis, loss, training_cut(actor), models.device)
                    metrics |= prefixed("actor", found)
            stage.recorder.token_scores(
                step, "train", token_scores(batch, episodes[:SHOWN_EPISODES])
            )
        models.engine.load_weights(models.actor.full_model(), version=step)
        release_memory()
        if stage.due(step, cfg.trainer.test_freq) or step == cfg.trainer.also_test_at:
            with stage.timer("validate"):
                metrics |= validate(cfg, player, models.engine, stage.recorder, step)
        warn_of_health(models, step, metrics)
        stage.commit(step, metrics, episodes, models, tokens=tokens_in(episodes))
    return stage.finish()


def barren_steps(episodes: list[Episode], before: int) -> int:
    """How many steps in a row had no episode without an error, this one included; raises
    TrainingError if these are too many."""
    if any(episode.stop is not Stop.ERROR for episode in episodes):
        return 0
    if before + 1 == MOST_BARREN_STEPS:
        raise TrainingError(
            f"not one episode of {before + 1} steps in a row could be played; the last reason: {episodes[0].error} "
            "Fix the environment, then start the same command again: it goes on from the last checkpoint."
        )
    return before + 1


def warn_of_health(models: Models, step: int, metrics: Metrics) -> None:
    """Warn of what begins to go wrong with learning at this step."""
    before = models.health.reasons
    models.health = models.health.observe(step_health(metrics))
    for name, reason in models.health.reasons.items():
        if name not in before:
            log.warning("step %d: %s: %s", step, name, reason)


def step_health(metrics: Metrics) -> StepHealth:
    """What a step's metrics say about the health of the run, over all environments together."""

    def pooled(prefix: str, name: str) -> float | None:
        tags = {
            key.split("/")[1]
            for key in metrics
            if key.startswith(f"{prefix}/") and key.endswith("/episodes")
        }
        counts = {
            tag: metrics[f"{prefix}/{tag}/episodes"]
            for tag in tags
            if f"{prefix}/{tag}/{name}" in metrics
        }
        total = sum(counts.values())
        return (
            sum(metrics[f"{prefix}/{tag}/{name}"] * count for tag, count in counts.items()) / total
            if total
            else None
        )

    played = sum(
        value
        for key, value in metrics.items()
        if key.startswith("train/") and key.endswith("/episodes")
    )
    spoilt = sum(
        value
        for key, value in metrics.items()
        if key.startswith("train/") and key.endswith("/errors")
    )
    return StepHealth(
        kept=int(metrics.get("rollout/kept_count", 0)),
        spread=metrics.get("rollout/in_group_std", 0.0),
        success=pooled("train", "success") or 0.0,
        episodes=int(played),
        faults=spoilt / max(1.0, played + spoilt),
        repetition=pooled("train", "repetition") or 0.0,
        validation=pooled("val-env", "success"),
        format=pooled("train", "wm/format_rate"),
        observations=pooled("train", "wm/obs_exact"),
        predictions=pooled("train", "wm/pred_exact"),
    )


def make_batch(
    cfg: Config, episodes: Sequence[Episode], template: ChatTemplate | None = None
) -> EpisodeBatch | None:
    """Episodes that ended without an error, with normalised rewards; None if there are none.
    `batch.episodes` counts `episodes`. The template is needed for loss masks other than the sampled
    tokens."""
    numbers = [number for number, episode in enumerate(episodes) if is_trainable(episode)]
    if not numbers:
        return None
    proxy = cfg.agent_proxy
    online = proxy.world_model_reward
    good = [episodes[number] for number in numbers]
    batch = batch_episodes(
        with_world_model_reward(
            good, observation=online.observation, prediction=online.prediction, within=online.within
        ),
        tags=cfg.es_manager.train.env_configs.tags,
        pad_id=0 if template is None else template.tokenizer.pad_token_id or 0,
        turn_scores=proxy.use_turn_scores,
        mask_of=loss_masks(good, cfg.actor_rollout_ref.actor.loss_mask, template),
        reader=None if template is None else template.images,
    )
    return normalized(cfg, replace(batch, episodes=torch.tensor(numbers)))


def last_turn_ends(batch: EpisodeBatch) -> torch.Tensor:
    """bool [B, A]: the end of each row's last turn."""
    return batch.turn_ends & (batch.turns == batch.turns.max(dim=1, keepdim=True).values)


def normalized(cfg: Config, batch: EpisodeBatch) -> EpisodeBatch:
    """The batch with rewards whose return, as the estimator discounts it, is the normalised score."""
    proxy = cfg.agent_proxy
    norm = cfg.agent_proxy.reward_normalization
    if norm.method == "identity":
        return batch
    estimator = named_estimator(cfg)
    settings = {key: getattr(cfg.algorithm, key) for key in estimator.settings}
    within_turn, between_turns = estimator.discounts(settings)
    last = last_turn_ends(batch)
    given = (batch.scores, batch.group_ids, batch.tag_ids)
    if not proxy.use_turn_scores and within_turn == between_turns == 1 and not estimator.centres:
        scores = normalize_scores(*given, grouping=norm.grouping, method=norm.method)
        return replace(batch, rewards=torch.where(last, scores[:, None], 0.0))
    follow = torch.where(batch.mask, torch.where(batch.turn_ends, between_turns, within_turn), 1.0)
    rewards = normalize_rewards(
        batch.rewards,
        last,
        *given,
        grouping=norm.grouping,
        method=norm.method,
        follow=None if within_turn == between_turns == 1 else follow,
        centre=not estimator.centres,
    )
    return replace(batch, rewards=rewards)


def filter_groups(cfg: Config, batch: EpisodeBatch | None, metrics: Metrics) -> EpisodeBatch | None:
    """The groups whose episodes differ most in score, as rows of the policy update: one for each
    episode, or for each turn where prompts have no history. None if no group differs."""
    if batch is None:
        return None
    rollout = cfg.actor_rollout_ref.rollout
    kind, strategy = FILTERS[rollout.rollout_filter_type]
    keep, found = select_groups(
        batch.scores,
        batch.group_ids,
        ratio=rollout.rollout_filter_ratio,
        kind=kind,
        strategy=strategy,
        include_zero=rollout.rollout_filter_include_zero,
    )
    metrics |= found
    if not keep.any():
        return None
    kept = select(batch, keep)
    return kept if cfg.ctx_manager.history else split_turns(kept)


def score(cfg: Config, models: Models, batch: EpisodeBatch, metrics: Metrics) -> ScoredBatch:
    """What policy, reference and critic say about the episodes before anything is updated; weights
    of the policy loss for what another sampler drew."""
    actor = cfg.actor_rollout_ref.actor
    ref_cfg = cfg.actor_rollout_ref.ref
    sampling = setup.train_sampling(cfg)
    algorithm = cfg.algorithm
    old = score_logprobs(models.actor, batch, scoring(cfg), models.device, sampling)
    ref = values = None
    if models.ref is not None:
        micro = micro_batching(actor, ref_cfg.log_prob_micro_batch_size_per_gpu)
        ref = score_logprobs(models.ref, batch, micro, models.device, sampling)
    if models.critic is not None:
        micro = micro_batching(cfg.critic, cfg.critic.forward_micro_batch_size_per_gpu)
        values = score_values(models.critic, batch, micro, models.device)
        if algorithm.bootstrap_truncated and batch.truncated is not None:
            batch = bootstrapped(
                cfg, batch, score_last_values(models.critic, batch, micro, models.device)
            )
    # k3 estimate of KL(sampler || trainer): zero if both compute the same numbers from the same
    # weights.
    gap = kl_penalty(batch.sampler_logprobs, old, "low_var_kl")
    sampled = batch.mask
    if actor.loss_mask == "all_after_system":  # the environment's tokens have no sampler
        sampled = sampled & (batch.sampler_logprobs < 0)
    correction = algorithm.rollout_correction
    importance, weighed = rollout_weights(
        old,
        batch.sampler_logprobs,
        sampled,
        level=correction.level,
        mode=correction.mode,
        cap=correction.cap,
        floor=correction.floor,
    )
    if importance is not None:
        batch = replace(batch, rl_weights=batch.rl_weights * importance)
    metrics |= {
        "rollout/kl_trainer_sampler": float(masked_mean(gap, sampled)),
        "rollout/logprob_gap_max": float(((old - batch.sampler_logprobs).abs() * sampled).max()),
        "rollout/old_log_prob": float(masked_mean(old, batch.mask)),
        **weighed,
    }
    known = {item.name: getattr(batch, item.name) for item in fields(EpisodeBatch)}
    return ScoredBatch(**known, old_logprobs=old, ref_logprobs=ref, values=values)


def bootstrapped(cfg: Config, batch: EpisodeBatch, values: torch.Tensor) -> EpisodeBatch:
    """The batch with `values` [B], discounted once, added to the last reward of the episodes that
    were cut off: what follows them is not 0, only unseen."""
    algorithm = cfg.algorithm
    per_turn = algorithm.bi_level_gae or algorithm.adv_estimator.startswith("turn_")
    following = values * (algorithm.high_level_gamma if per_turn else algorithm.gamma)
    last = last_turn_ends(batch)
    assert batch.truncated is not None
    return replace(batch, rewards=batch.rewards + last * (following * batch.truncated)[:, None])


def check_sampler(cfg: Config, kl: float, models: Models, step: int) -> None:
    """Warn if the engine samples from other numbers than the trainer computes; stop if that is so
    from the start."""
    if kl > cfg.trainer.kl_stop and models.actor.optimizer.steps == 0:
        raise TrainingError(
            f"KL(sampler || trainer) is {kl:.3g} per token before anything is trained (limit trainer.kl_stop = "
            f"{cfg.trainer.kl_stop}). The engine does not sample from the weights that are trained: check that both "
            "load the same model in the same precision, and that the engine's log-probs are those of the policy after "
            "temperature, top_k and top_p."
        )
    if kl > cfg.trainer.kl_warn:
        log.warning(
            "step %d: KL(sampler || trainer) is %.3g per token, above %g",
            step,
            kl,
            cfg.trainer.kl_warn,
        )


def add_advantages(cfg: Config, models: Models, batch: ScoredBatch, metrics: Metrics) -> PPOBatch:
    """Rewards (less KL, if asked for) to advantages and returns; advantages are whitened over all
    sampled tokens."""
    alg = cfg.algorithm
    rewards = batch.rewards
    if alg.use_kl_in_reward and batch.ref_logprobs is not None:
        rewards, kl = kl_in_reward(
            rewards,
            batch.old_logprobs,
            batch.ref_logprobs,
            batch.mask,
            coef=models.kl.coef,
            kind=alg.kl_penalty,
        )
        mean_kl = float(mean_per_row(kl, batch.mask))
        metrics |= {"actor/reward_kl_penalty": mean_kl, "actor/reward_kl_coef": models.kl.coef}
        models.kl = models.kl.update(mean_kl, len(batch))
    estimator = named_estimator(cfg)
    advantages, returns = estimator.estimate(
        batch, rewards, {key: getattr(alg, key) for key in estimator.settings}
    )
    if cfg.actor_rollout_ref.actor.grpo_advantage_length_weight and alg.adv_estimator == "grpo":
        advantages = length_weighted(advantages, batch.mask)
    metrics["critic/returns/mean"] = float(masked_mean(returns, batch.mask))
    metrics["critic/advantages/mean"] = float(masked_mean(advantages, batch.mask))
    if batch.values is not None:
        metrics["critic/values/mean"] = float(masked_mean(batch.values, batch.mask))
        metrics["critic/vf_explained_var"] = float(
            explained_variance(batch.values, returns, batch.mask)
        )
    if alg.whiten_advantages and estimator.whitened:
        advantages = whiten(advantages, batch.mask)
    known = {item.name: getattr(batch, item.name) for item in fields(ScoredBatch)}
    return PPOBatch(**known, advantages=advantages, returns=returns)


def method_context(cfg: Config, models: Models, step: int, metrics: Metrics) -> Context:
    """What the methods may use at this step."""
    sampling = setup.train_sampling(cfg)
    return Context(
        cfg=cfg,
        step=step,
        template=models.template,
        entropies=lambda batch: score_entropies(
            models.actor, batch, scoring(cfg), models.device, sampling
        ),
        state_values=partial(state_values, cfg),
        stored=models.replay,
        metrics=metrics,
    )


def state_values(cfg: Config, tag: str, texts: Collection[str]) -> dict[str, float]:
    """What an environment says that states are worth, by their texts; 0 where it cannot say."""
    with setup.first_puzzle(cfg, cfg.custom_envs[tag]) as env:
        return {text: env.state_value(text) or 0.0 for text in sorted(texts)}


def with_replayed(mini_batches: Sequence[torch.Tensor], batch: PPOBatch) -> list[torch.Tensor]:
    """The mini-batches with equally many of the batch's replayed rows in each, in their order."""
    pieces = (~batch.played).nonzero()[:, 0].tensor_split(len(mini_batches))
    return [torch.cat(pair) for pair in zip(mini_batches, pieces, strict=True)]


def prefixed(name: str, metrics: Metrics) -> Metrics:
    """The metrics of a part, with its name before theirs."""
    return {f"{name}/{key}": value for key, value in metrics.items()}


def mini_batches(
    cfg: Config, part: ActorConfig | CriticConfig, batch: PPOBatch, step: int
) -> Iterator[MiniBatch]:
    """The mini-batches of a step: of its episodes and, for the policy, of what is replayed with
    them."""
    rows = plan_mini_batches(
        int(batch.played.sum()),
        size=part.ppo_mini_batch_size,
        count=cfg.actor_rollout_ref.actor.ppo_num_mini_batches,
        epochs=part.ppo_epochs,
        shuffle=part.shuffle,
        generator=torch_stream(cfg.seed.train, "minibatch", step),  # the same cut for both
    )
    longest = max(cfg.max_turn(tag) for tag in cfg.es_manager.train.env_configs.tags)
    horizon = cfg.actor_rollout_ref.rollout.response_length * longest
    for picked in with_replayed(rows, batch) if isinstance(part, ActorConfig) else rows:
        yield mini_batch(batch, picked, part.loss_agg_mode, horizon=horizon)


def training_cut(part: ActorConfig | CriticConfig) -> MicroBatching:
    """How a mini-batch is cut to train on it."""
    return micro_batching(part, part.ppo_micro_batch_size_per_gpu)


def scoring(cfg: Config) -> MicroBatching:
    """How a batch is cut to score it with the policy."""
    return micro_batching(
        cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu
    )


def micro_batching(cfg: ActorConfig | CriticConfig, rows: int) -> MicroBatching:
    """By rows, or by tokens with `use_dynamic_bsz`."""
    if cfg.use_dynamic_bsz:
        return MicroBatching(max_tokens=cfg.ppo_max_token_len_per_gpu)
    return MicroBatching(rows=rows)

"""Turn the tensors of a step's episodes into mini-batches for PPO: filter groups, compute log-probs
and values, estimate advantages, and split the batch. Each mini-batch gives one update, and consists
of micro-batches that fit into memory.

`train_ppo` calls these functions in this order. None of them changes the weights of a model.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

import torch

from spa.algo.advantages import length_weighted
from spa.algo.filters import FILTERS, select_groups
from spa.algo.losses import kl_in_reward, kl_penalty, rollout_weights
from spa.algo.masked import explained_variance, masked_mean, mean_per_row, whiten
from spa.config.schema import ActorConfig, Config, CriticConfig
from spa.errors import TrainingError
from spa.recipes.ppo_models import Models, named_estimator
from spa.seeds import torch_stream
from spa.training.batch import select, split_turns
from spa.training.update import (
    MicroBatching,
    mini_batch,
    plan_mini_batches,
    score_last_values,
    score_logprobs,
    score_values,
)
from spa.types import EpisodeBatch, Metrics, MiniBatch, PPOBatch, ScoredBatch

log = logging.getLogger(__name__)


def filter_groups(cfg: Config, batch: EpisodeBatch | None, metrics: Metrics) -> EpisodeBatch | None:
    """Select the groups to train on by their reward variance (`rollout_filter_*`), and add the
    filter's statistics to `metrics`.

    The result has one row per episode, or per turn if prompts have no history. It is None if no
    group is selected, for example because none has any variance.
    """
    if batch is None:
        return None
    rollout = cfg.actor_rollout_ref.rollout
    kind, strategy = FILTERS[rollout.rollout_filter_type]
    # Groups are selected by raw scores, because normalization with `mean_std` gives every group
    # with different scores a standard deviation of 1.
    keep, statistics = select_groups(
        batch.scores,
        batch.group_ids,
        ratio=rollout.rollout_filter_ratio,
        kind=kind,
        strategy=strategy,
        include_zero=rollout.rollout_filter_include_zero,
    )
    metrics |= statistics
    if not keep.any():
        return None
    kept = select(batch, keep)
    return kept if cfg.ctx_manager.history else split_turns(kept)


def score(cfg: Config, models: Models, batch: EpisodeBatch, metrics: Metrics) -> ScoredBatch:
    """Compute the log-probs of policy and reference and the values of the critic, before any
    update.

    Measures the mismatch between the trainer's and the engine's log-probs, and adds it to
    `metrics`. If configured, sets token weights of the policy loss that correct the mismatch.
    """
    actor = cfg.actor_rollout_ref.actor
    ref_cfg = cfg.actor_rollout_ref.ref
    sampling = models.sampling
    algorithm = cfg.algorithm
    old = score_logprobs(models.actor, batch, scoring(cfg), models.device, sampling)
    ref = values = None
    if models.ref is not None:
        micro = micro_batching(actor, ref_cfg.log_prob_micro_batch_size_per_gpu)
        ref = score_logprobs(models.ref, batch, micro, models.device, sampling)
    if models.critic is not None:
        micro = micro_batching(cfg.critic, cfg.critic.forward_micro_batch_size_per_gpu)
        values = score_values(models.critic, batch, micro, models.device)
        # The value of the state after the truncation is added to the rewards, so that all
        # estimators with a critic treat truncated episodes alike.
        if algorithm.bootstrap_truncated and batch.truncated is not None:
            batch = bootstrapped(
                cfg, batch, score_last_values(models.critic, batch, micro, models.device)
            )
    # k3 estimate of KL(sampler || trainer): zero if both compute the same numbers from the same
    # weights.
    gap = kl_penalty(batch.sampler_logprobs, old, "low_var_kl")
    # A loss mask may include tokens of the environment, which were not sampled.
    sampled = batch.mask if batch.sampled is None else batch.mask & batch.sampled
    correction = algorithm.rollout_correction
    # The mismatch is always measured. `importance` is None unless a correction is configured.
    importance, weighed = rollout_weights(
        old,
        batch.sampler_logprobs,
        sampled,
        level=correction.level,
        mode=correction.mode,
        cap=correction.cap,
        floor=correction.floor,
    )
    # Only the policy loss is reweighted: entropy bonus and KL loss use `token_weights` alone.
    if importance is not None:
        batch = replace(batch, rl_weights=batch.rl_weights * importance)
    metrics |= {
        "rollout/mismatch_kl": float(masked_mean(gap, sampled)),
        "rollout/logprob_gap_max": float(((old - batch.sampler_logprobs).abs() * sampled).max()),
        "rollout/old_log_prob": float(masked_mean(old, sampled)),
        **weighed,
    }
    # `dataclasses.replace` cannot change the class, so the shared fields are copied.
    known = {item.name: getattr(batch, item.name) for item in fields(EpisodeBatch)}
    return ScoredBatch(**known, old_logprobs=old, ref_logprobs=ref, values=values)


def last_turn_ends(batch: EpisodeBatch) -> torch.Tensor:
    """Return a bool tensor [B, A] that is True only at the last sampled token of each row."""
    return batch.turn_ends & (batch.turns == batch.turns.max(dim=1, keepdim=True).values)


def bootstrapped(cfg: Config, batch: EpisodeBatch, values: torch.Tensor) -> EpisodeBatch:
    """Add `values` [B], discounted by one turn, to the last reward of each truncated episode.
    `values` estimate the return that the episode would still have had."""
    estimator = named_estimator(cfg)
    # `values` belong to the state in which the next turn would have begun.
    _, between_turns = estimator.discounts(estimator.settings_from(cfg.algorithm))
    following = values * between_turns
    last = last_turn_ends(batch)
    assert batch.truncated is not None
    return replace(batch, rewards=batch.rewards + last * (following * batch.truncated)[:, None])


def check_sampler(cfg: Config, kl: float, models: Models, step: int) -> None:
    """Warn if `kl`, the mean KL(sampler || trainer) per token, is above `trainer.kl_warn`. Raise
    TrainingError if it is above `trainer.kl_stop` before the first update."""
    # Before the first update, a large gap means a wrong set-up, such as other weights or another
    # precision. After an update, it only causes a warning.
    if kl > cfg.trainer.kl_stop and models.actor.optimizer.steps == 0:
        raise TrainingError(
            f"KL(sampler || trainer) is {kl:.3g} per token before the first update (limit "
            f"trainer.kl_stop = {cfg.trainer.kl_stop}). The engine does not sample from the "
            "trained weights. Check that engine and trainer load the same model in the same "
            "precision. The engine must return log-probs after temperature, top_k and top_p."
        )
    if kl > cfg.trainer.kl_warn:
        log.warning(
            "step %d: KL(sampler || trainer) is %.3g per token, above the limit trainer.kl_warn=%g",
            step,
            kl,
            cfg.trainer.kl_warn,
        )


def add_advantages(cfg: Config, models: Models, batch: ScoredBatch, metrics: Metrics) -> PPOBatch:
    """Estimate advantages and returns from the rewards, after subtracting the KL term if it is
    configured. Advantages are whitened over the masked tokens if the configuration requires it and
    the estimator allows it. Adds metrics to `metrics` and updates the KL coefficient."""
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
        # The new coefficient applies to the next step; the logged one was used in this step.
        models.kl = models.kl.update(mean_kl, len(batch.episodes.unique()))
    estimator = named_estimator(cfg)
    advantages, returns = estimator.estimate(batch, rewards, estimator.settings_from(alg))
    if cfg.actor_rollout_ref.actor.grpo_advantage_length_weight and alg.adv_estimator == "grpo":
        advantages = length_weighted(advantages, batch.mask)
    metrics["critic/returns/mean"] = float(masked_mean(returns, batch.mask))
    metrics["critic/advantages/mean"] = float(masked_mean(advantages, batch.mask))
    if batch.values is not None:
        metrics["critic/values/mean"] = float(masked_mean(batch.values, batch.mask))
        metrics["critic/vf_explained_var"] = float(
            explained_variance(batch.values, returns, batch.mask)
        )
    # Advantages are whitened only after the returns are computed, so that the critic's targets keep
    # the unit of the rewards.
    if alg.whiten_advantages and estimator.whitened:
        advantages = whiten(advantages, batch.mask)
    known = {item.name: getattr(batch, item.name) for item in fields(ScoredBatch)}
    return PPOBatch(**known, advantages=advantages, returns=returns)


def prefixed(name: str, metrics: Metrics) -> Metrics:
    """Prefix the names of metrics with `name/`."""
    return {f"{name}/{key}": value for key, value in metrics.items()}


def mini_batches(
    cfg: Config, part: ActorConfig | CriticConfig, batch: PPOBatch, step: int
) -> Iterator[MiniBatch]:
    """Yield the mini-batches of a step for the actor or the critic (`part` is its configuration).
    Only the actor's mini-batches include replayed examples."""
    rows = plan_mini_batches(
        int(batch.played.sum()),
        size=part.ppo_mini_batch_size,
        count=cfg.actor_rollout_ref.actor.ppo_num_mini_batches,
        epochs=part.ppo_epochs,
        shuffle=part.shuffle,
        # The seed does not depend on `part`: with the same `shuffle`, policy and critic get the
        # episodes in the same order.
        generator=torch_stream(cfg.seed.train, "minibatch", step),
    )
    # Maximum number of response tokens in a row; a row is an episode, or a single turn if prompts
    # have no history. `seq-mean-token-sum-norm` divides by this constant.
    tags = cfg.es_manager.train.env_configs.tags
    longest = max(cfg.max_turn(tag) for tag in tags) if cfg.ctx_manager.history else 1
    horizon = cfg.actor_rollout_ref.rollout.response_length * longest
    # The critic learns only from played rows, since replayed ones have no returns.
    for picked in with_replayed(rows, batch) if isinstance(part, ActorConfig) else rows:
        yield mini_batch(batch, picked, part.loss_agg_mode, horizon=horizon)


def with_replayed(mini_batches: Sequence[torch.Tensor], batch: PPOBatch) -> list[torch.Tensor]:
    """Distribute the batch's replayed examples evenly over the mini-batches, in order."""
    pieces = (~batch.played).nonzero()[:, 0].tensor_split(len(mini_batches))
    return [torch.cat(pair) for pair in zip(mini_batches, pieces, strict=True)]


def training_cut(part: ActorConfig | CriticConfig) -> MicroBatching:
    """Micro-batching for training on a mini-batch of actor or critic."""
    return micro_batching(part, part.ppo_micro_batch_size_per_gpu)


def scoring(cfg: Config) -> MicroBatching:
    """Micro-batching for scoring with the policy."""
    return micro_batching(
        cfg.actor_rollout_ref.actor, cfg.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu
    )


def micro_batching(cfg: ActorConfig | CriticConfig, rows: int) -> MicroBatching:
    """Return how to split batches into micro-batches: by number of tokens with `use_dynamic_bsz`,
    otherwise into `rows` rows each."""
    if cfg.use_dynamic_bsz is True:
        return MicroBatching(max_tokens=cfg.ppo_max_token_len_per_gpu)
    return MicroBatching(rows=rows)

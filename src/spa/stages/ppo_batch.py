"""From the episodes of a step to the batch that PPO learns from: filter, score, advantages, methods.

`train_ppo` calls these functions in this order. None of them changes a model.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import fields, replace
from functools import partial

import torch

from spa.algo.advantages import length_weighted
from spa.algo.filters import FILTERS, select_groups
from spa.algo.kl import kl_in_reward
from spa.algo.losses import kl_penalty
from spa.algo.masked import explained_variance, masked_mean, mean_per_row, whiten
from spa.algo.reward_normalization import normalize_rewards, normalize_scores
from spa.algo.sampled import rollout_weights
from spa.config.schema import Config
from spa.errors import TrainingError
from spa.methods.context import Context, annotate_all
from spa.prompts.template import ChatTemplate
from spa.stages import setup
from spa.stages.ppo_models import Models, named_estimator
from spa.stages.ppo_updates import micro_batching, scoring
from spa.training.batch import batch_episodes, is_trainable, select, split_turns
from spa.training.loss_masks import loss_masks
from spa.training.update import score_entropies, score_last_values, score_logprobs, score_values
from spa.types import Episode, EpisodeBatch, Metrics, PPOBatch, ScoredBatch
from spa.worldmodel.online import with_world_model_reward

log = logging.getLogger(__name__)


def make_batch(
    cfg: Config, episodes: Sequence[Episode], template: ChatTemplate | None = None
) -> EpisodeBatch | None:
    """Episodes that ended without an error, with normalised rewards; None if there are none.
    `batch.episodes` counts `episodes`. The template is needed for loss masks other than the sampled
    tokens."""
    # Positions among all episodes of the step: they lead from
    # a row back to its episode after filtering and splitting.
    numbers = [number for number, episode in enumerate(episodes) if is_trainable(episode)]
    if not numbers:
        return None
    proxy = cfg.agent_proxy
    online = proxy.world_model_reward
    good = [episodes[number] for number in numbers]
    # Padding follows the real tokens, where causal attention never sees it: any valid id will do.
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
    # Several turns of a row may be rewarded; what normalisation adds goes onto its last one.
    last = last_turn_ends(batch)
    given = (batch.scores, batch.group_ids, batch.tag_ids)
    # One reward at the end and no discount: the return
    # from every token is the normalised score itself.
    if not proxy.use_turn_scores and within_turn == between_turns == 1 and not estimator.centres:
        scores = normalize_scores(*given, grouping=norm.grouping, method=norm.method)
        return replace(batch, rewards=torch.where(last, scores[:, None], 0.0))
    # [B, A]: the discount from a token's return to the next one's.
    # Environment text has 1, so that time counts sampled tokens.
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
    # By raw scores: after `mean_std` every group of mixed outcomes would have a deviation of 1.
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
        # Added to the rewards, so that every estimator
        # with a critic handles a cut-off episode alike.
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
    # Measured in any case; weights come back only where a correction is configured.
    importance, weighed = rollout_weights(
        old,
        batch.sampler_logprobs,
        sampled,
        level=correction.level,
        mode=correction.mode,
        cap=correction.cap,
        floor=correction.floor,
    )
    # The policy loss alone is reweighted: entropy bonus and KL loss use
    # `token_weights`, whose denominator stays the number of tokens.
    if importance is not None:
        batch = replace(batch, rl_weights=batch.rl_weights * importance)
    metrics |= {
        "rollout/mismatch_kl": float(masked_mean(gap, sampled)),
        "rollout/logprob_gap_max": float(((old - batch.sampler_logprobs).abs() * sampled).max()),
        "rollout/old_log_prob": float(masked_mean(old, batch.mask)),
        **weighed,
    }
    # `replace` keeps the class; a ScoredBatch is built from the fields that both have.
    known = {item.name: getattr(batch, item.name) for item in fields(EpisodeBatch)}
    return ScoredBatch(**known, old_logprobs=old, ref_logprobs=ref, values=values)


def bootstrapped(cfg: Config, batch: EpisodeBatch, values: torch.Tensor) -> EpisodeBatch:
    """The batch with `values` [B], discounted once, added to the last reward of the episodes that
    were cut off: what follows them is not 0, only unseen."""
    algorithm = cfg.algorithm
    # Credit per turn discounts once per turn, credit per token
    # once per token: the unseen next state is one such unit away.
    per_turn = algorithm.bi_level_gae or algorithm.adv_estimator.startswith("turn_")
    following = values * (algorithm.high_level_gamma if per_turn else algorithm.gamma)
    last = last_turn_ends(batch)
    assert batch.truncated is not None
    return replace(batch, rewards=batch.rewards + last * (following * batch.truncated)[:, None])


def check_sampler(cfg: Config, kl: float, models: Models, step: int) -> None:
    """Warn if the engine samples from other numbers than the trainer computes; stop if that is so
    from the start."""
    # Before the first update a large gap is a fault of the set-up
    # (other weights or another precision); later it is only warned of.
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
        # For the next step: this one was charged with the coefficient that is logged.
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
    # After the returns: the critic's targets keep the unit of the rewards.
    if alg.whiten_advantages and estimator.whitened:
        advantages = whiten(advantages, batch.mask)
    known = {item.name: getattr(batch, item.name) for item in fields(ScoredBatch)}
    return PPOBatch(**known, advantages=advantages, returns=returns)


def annotate_batch(
    cfg: Config,
    models: Models,
    batch: PPOBatch,
    episodes: Sequence[Episode],
    metrics: Metrics,
    step: int,
) -> PPOBatch:
    """The batch with the weights and the rows that the methods of the configuration add."""
    return annotate_all(batch, episodes, method_context(cfg, models, step, metrics))


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
    """The environment's state values, by state text; 0 where it gives none."""
    # Values are read from the text alone, so any puzzle of the tag will do.
    with setup.first_puzzle(cfg, cfg.custom_envs[tag]) as env:
        return {text: env.state_value(text) or 0.0 for text in sorted(texts)}

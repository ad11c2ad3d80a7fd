"""Divide a batch into mini-batches, one update each, and into micro-batches that fit into
memory."""

from collections.abc import Iterator, Sequence

import torch

from spa.config.schema import ActorConfig, Config, CriticConfig
from spa.seeds import torch_stream
from spa.training.update import MicroBatching, mini_batch, plan_mini_batches
from spa.types import Metrics, MiniBatch, PPOBatch


def prefixed(name: str, metrics: Metrics) -> Metrics:
    """Prefix the names of metrics with `name/`."""
    return {f"{name}/{key}": value for key, value in metrics.items()}


def mini_batches(
    cfg: Config, part: ActorConfig | CriticConfig, batch: PPOBatch, step: int
) -> Iterator[MiniBatch]:
    """Yield the mini-batches of a step, including the replayed examples for the policy."""
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
    """Micro-batching by number of tokens with `use_dynamic_bsz`, otherwise by `rows` rows."""
    if cfg.use_dynamic_bsz is True:
        return MicroBatching(max_tokens=cfg.ppo_max_token_len_per_gpu)
    return MicroBatching(rows=rows)

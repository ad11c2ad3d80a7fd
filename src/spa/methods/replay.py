"""Replay (`actor_rollout_ref.actor.replay`): every policy update also trains on examples with true
states. These are the examples of stage 2, or the step's own episodes, in which true states replace
the model's states."""

import logging
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spa.config.schema import Config
from spa.errors import ConfigError
from spa.formats.registry import format_of
from spa.methods import Method
from spa.methods.context import Context, Replayed
from spa.prompts.template import ChatTemplate
from spa.seeds import stream
from spa.training.update import count_mini_batches
from spa.types import Episode, PPOBatch
from spa.worldmodel.examples import episode_examples, shuffle_next_states
from spa.worldmodel.sequences import training_sequences
from spa.worldmodel.sft_data import find_data, load_data
from spa.worldmodel.states import with_states

log = logging.getLogger(__name__)

_REPLAY = "actor_rollout_ref.actor.replay"

METHODS = {
    "replay": Method(
        description="PPO with stored SFT examples added to the episodes of every update",
        ppo=(f"{_REPLAY}.source=data", f"{_REPLAY}.examples=8", f"{_REPLAY}.coef=0.1"),
    ),
    "relabelled_rollouts": Method(
        description=(
            "PPO that adds the current step's episodes, rewritten with true states, to every update"
        ),
        ppo=(
            f"{_REPLAY}.source=rollouts",
            f"{_REPLAY}.examples=8",
            f"{_REPLAY}.coef=0.3",
            f"{_REPLAY}.loss_on=null",
        ),
    ),
}


def annotate(batch: PPOBatch, episodes: Sequence[Episode], context: Context) -> PPOBatch:
    """Append `replay.examples` examples per mini-batch to the batch. The batch is unchanged if
    there is nothing to replay, or during critic warm-up."""
    actor = context.cfg.actor_rollout_ref.actor
    if actor.replay.examples == 0 or context.step <= context.cfg.trainer.critic_warmup:
        return batch
    mini_batches = count_mini_batches(
        len(batch), size=actor.ppo_mini_batch_size, count=actor.ppo_num_mini_batches
    )
    # Enough rows for every mini-batch of every epoch; `spa.recipes.ppo_batch.with_replayed`
    # distributes them.
    rows = sampled_sequences(
        context, episodes, count=actor.replay.examples * mini_batches * actor.ppo_epochs
    )
    if not rows:
        return batch
    longer = with_sequences(batch, rows)
    context.metrics["actor/replay_tokens"] = float(longer.ce_weights[len(batch) :].sum())
    return longer


def stored_in(cfg: Config) -> Path | None:
    """Return the folder of the replayed stage 2 examples; None if none are replayed."""
    replay = cfg.actor_rollout_ref.actor.replay
    return find_data(cfg, None) if replay.examples and replay.source == "data" else None


def stored(cfg: Config, template: ChatTemplate) -> list[Replayed]:
    """Load the training sequences of stage 2 if the settings replay them; otherwise return an empty
    list. Warns if the settings replay rollouts, but rollouts cannot be corrected. Raises DataError
    if there are no sequences, ConfigError for a vision model."""
    replay = cfg.actor_rollout_ref.actor.replay
    data = cfg.sft.data
    if replay.corrects_rollouts and (reason := correction_obstacle(cfg, template)):
        log.warning("actor_rollout_ref.actor.replay: PPO replays no episodes, because %s", reason)
    if replay.examples == 0 or replay.source == "rollouts":
        return []
    if template.images is not None:
        raise ConfigError(
            "actor_rollout_ref.actor.replay.examples must be 0 for a vision model, because the "
            "replayed examples have no pictures"
        )
    # These are the examples of stage 2, but `replay.loss_on` may select other tokens for the loss.
    learnt = replace(
        cfg, sft=replace(cfg.sft, data=replace(data, loss_on=replay.loss_on or data.loss_on))
    )
    sequences, _ = load_data(learnt, template, None)
    return [(sequence.token_ids, sequence.mask) for sequence in sequences]


def with_sequences(batch: PPOBatch, rows: Sequence[Replayed]) -> PPOBatch:
    """Append `rows` to the batch. They contain no sampled tokens, so the policy loss ignores them.
    `ce_weights` is 1 on the tokens that contribute to the loss."""
    count = len(rows)
    old = len(batch)
    width = max(batch.input_ids.shape[1], *(len(ids) for ids, _ in rows))
    ids = torch.zeros(count, width, dtype=torch.int64)
    learnt = torch.zeros(count, width)
    for row, (tokens, mask) in enumerate(rows):
        ids[row, : len(tokens)] = torch.from_numpy(tokens.astype(np.int64))
        learnt[row, : len(mask)] = torch.from_numpy(mask.astype(np.float32))
    columns: dict[str, Any] = {item.name: getattr(batch, item.name) for item in fields(batch)}
    for name, value in columns.items():
        if isinstance(value, torch.Tensor):
            # Replayed rows belong to no turn and no episode (-1). All other columns are 0, since no
            # token was sampled.
            fill = -1 if name in ("turns", "episodes") else 0
            columns[name] = _longer(value, count, width - (name != "input_ids"), fill=fill)
    columns["input_ids"][old:] = ids
    columns["lengths"][old:] = torch.tensor([len(tokens) for tokens, _ in rows])
    columns["ce_weights"][old:] = learnt[:, 1:]  # the prediction of token t is entry t - 1
    return PPOBatch(**columns)


def _longer(value: torch.Tensor, rows: int, width: int, fill: int) -> torch.Tensor:
    """Pad `value` with `fill`: by `rows` more rows and, if it is a matrix, to `width` columns."""
    shape = (len(value) + rows, width) if value.ndim == 2 else (len(value) + rows,)
    out = torch.full(shape, fill, dtype=value.dtype)
    out[tuple(slice(0, size) for size in value.shape)] = value
    return out


def correction_obstacle(cfg: Config, template: ChatTemplate) -> str:
    """Return the reason why rollouts cannot be corrected; "" if they can."""
    if cfg.ctx_manager.mode == "base":
        return "responses with ctx_manager.mode=base contain no states to correct"
    if why := format_of(cfg.agent_proxy.response_format).correction_obstacle():
        return why
    return (
        "the model is a vision model, and replayed examples contain no pictures"
        if template.images is not None
        else ""
    )


def sampled_sequences(
    context: Context, episodes: Sequence[Episode], *, count: int
) -> list[Replayed]:
    """Sample `count` examples for a step, from the stored examples or else from the step's
    episodes. Episodes are converted in random batches of `count` until a batch yields examples,
    which are repeated if there are too few. Returns an empty list if no batch yields any."""
    cfg = context.cfg
    # The stream depends on the step, so that a resumed run replays the same examples.
    rng = stream(cfg.seed.train, "replay", context.step)
    if context.stored:
        return [context.stored[number] for number in rng.integers(len(context.stored), size=count)]
    if not cfg.actor_rollout_ref.actor.replay.corrects_rollouts or correction_obstacle(
        cfg, context.template
    ):
        return []
    wanted = [episode for episode in episodes if episode.success or not cfg.generate.success_only]
    order = rng.permutation(len(wanted))
    for first in range(0, len(order), count):
        picked = [wanted[number] for number in order[first : first + count]]
        if sequences := corrected(cfg, context.template, picked):
            return [sequences[number % len(sequences)] for number in range(count)]
    return []


def corrected(cfg: Config, template: ChatTemplate, episodes: Sequence[Episode]) -> list[Replayed]:
    """Convert episodes to training sequences as stages 1 and 2 would: the states in the responses
    are replaced by true ones or, for controls, by the control's states. Turns with a malformed
    response yield no example."""
    data = cfg.sft.data
    examples = [
        example
        for episode in episodes
        for example in episode_examples(episode, action_sep=cfg.action_sep(episode.tag))[0]
    ]
    # If SFT trained on shuffled next states, replay must shuffle them as well. Otherwise it would
    # show the true states that SFT withheld.
    if cfg.generate.shuffle_next_states:
        examples = shuffle_next_states(examples, cfg.seed.train)
    sequences, _ = training_sequences(
        with_states(examples, cfg.generate.states, seed=cfg.seed.train),
        template,
        max_length=data.max_length,
        merge_turns=data.merge_turns,
        loss_on=cfg.actor_rollout_ref.actor.replay.loss_on or data.loss_on,
    )
    return [(sequence.token_ids, sequence.mask) for sequence in sequences]

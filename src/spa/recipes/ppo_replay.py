"""Rows that are learnt beside the episodes of every policy update: stage 2's, or the step's own play with the truth in
place of what the model believed."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spa.config.schema import Config
from spa.errors import ConfigError
from spa.prompts.template import ChatTemplate
from spa.recipes import sft
from spa.seeds import stream
from spa.training.replay import Replayed
from spa.types import Episode
from spa.worldmodel.rows import episode_rows, shuffle_next_states
from spa.worldmodel.sequences import row_sequences
from spa.worldmodel.states import with_states

log = logging.getLogger(__name__)


def replayed_data(cfg: Config) -> Path | None:
    """The folder that replayed rows come from, which then counts by its content; None if none do."""
    replay = cfg.actor_rollout_ref.actor.replay
    return sft.find_data(cfg, None) if replay.rows and replay.source == "data" else None


def stored_rows(cfg: Config, template: ChatTemplate) -> list[Replayed]:
    """Stage 2's training sequences if rows of them are replayed. Raises DataError if there are none, ConfigError for
    rows with pictures. Says so where rollouts are to be replayed and none of them can be."""
    replay, data = cfg.actor_rollout_ref.actor.replay, cfg.sft.data
    if replay.corrects_rollouts and (reason := _nothing_to_correct(cfg, template)):
        log.warning("actor_rollout_ref.actor.replay: no rollout is replayed: %s", reason)
    if replay.rows == 0 or replay.source == "rollouts":
        return []
    if template.images is not None:
        raise ConfigError("actor_rollout_ref.actor.replay.rows must be 0 for a model that sees: rows have no pictures")
    learnt = replace(cfg, sft=replace(cfg.sft, data=replace(data, loss_on=replay.loss_on or data.loss_on)))
    sequences, _ = sft.load_data(learnt, template, None)
    return [(sequence.token_ids, sequence.mask) for sequence in sequences]


def _nothing_to_correct(cfg: Config, template: ChatTemplate) -> str:
    """Why no rollout can be corrected; empty if they can."""
    if cfg.ctx_manager.mode == "base":
        return "replies in base format hold no states"
    if cfg.agent_proxy.reply_order == "choose_plan":
        return "what other plans than the chosen one lead to is not known"
    return "rows have no pictures" if template.images is not None else ""


def drawn_rows(
    cfg: Config,
    template: ChatTemplate,
    stored: Sequence[Replayed],
    episodes: Sequence[Episode],
    *,
    count: int,
    step: int,
) -> list[Replayed]:
    """`count` rows for a step, of those that are stored or of its episodes; none if there are none."""
    rng = stream(cfg.seed.train, "replay", step)
    if stored:
        return [stored[number] for number in rng.integers(len(stored), size=count)]
    if not cfg.actor_rollout_ref.actor.replay.corrects_rollouts or _nothing_to_correct(cfg, template):
        return []
    wanted = [episode for episode in episodes if episode.success or not cfg.generate.success_only]
    picked = rng.permutation(len(wanted))[:count]
    found = corrected(cfg, template, [wanted[number] for number in picked])
    return [found[number % len(found)] for number in range(count)] if found else []


def corrected(cfg: Config, template: ChatTemplate, episodes: Sequence[Episode]) -> list[Replayed]:
    """The episodes as stage 1 would write them: with true states in the replies, or with those of its controls. Turns
    that are not in the format have no row."""
    data, generate = cfg.sft.data, cfg.generate
    rows = [row for episode in episodes for row in episode_rows(episode, action_sep=cfg.action_sep(episode.tag))[0]]
    if generate.shuffle_next_states:
        rows = shuffle_next_states(rows, cfg.seed.train)
    sequences, _ = row_sequences(
        with_states(rows, generate.states, seed=cfg.seed.train),
        template,
        max_length=data.max_length,
        merge_turns=data.merge_turns,
        loss_on=cfg.actor_rollout_ref.actor.replay.loss_on or data.loss_on,
    )
    return [(sequence.token_ids, sequence.mask) for sequence in sequences]

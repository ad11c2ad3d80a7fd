"""Source of the examples that PPO replays (`spa.methods.replay`)."""

import logging
from dataclasses import replace
from pathlib import Path

from spa.config.schema import Config
from spa.errors import ConfigError
from spa.methods.context import Replayed
from spa.methods.replay import cannot_correct
from spa.prompts.template import ChatTemplate
from spa.recipes.sft_data import find_data, load_data

log = logging.getLogger(__name__)


def replayed_data(cfg: Config) -> Path | None:
    """The folder that replayed examples come from, which then counts by its content; None if none
    do."""
    replay = cfg.actor_rollout_ref.actor.replay
    return find_data(cfg, None) if replay.examples and replay.source == "data" else None


def stored_sequences(cfg: Config, template: ChatTemplate) -> list[Replayed]:
    """Stage 2's training sequences if examples of them are replayed. Raises DataError if there are
    none, ConfigError for examples with pictures. Says so where rollouts are to be replayed and none
    of them can be."""
    replay = cfg.actor_rollout_ref.actor.replay
    data = cfg.sft.data
    if replay.corrects_rollouts and (reason := cannot_correct(cfg, template)):
        log.warning("actor_rollout_ref.actor.replay: PPO replays no episodes, because %s", reason)
    if replay.examples == 0 or replay.source == "rollouts":
        return []
    if template.images is not None:
        raise ConfigError(
            "actor_rollout_ref.actor.replay.examples must be 0 for a vision model, because the "
            "replayed examples have no pictures"
        )
    # The examples of stage 2; `replay.loss_on` may put the loss on other tokens of them.
    learnt = replace(
        cfg, sft=replace(cfg.sft, data=replace(data, loss_on=replay.loss_on or data.loss_on))
    )
    sequences, _ = load_data(learnt, template, None)
    return [(sequence.token_ids, sequence.mask) for sequence in sequences]

"""ECHO (arXiv 2605.24517): cross-entropy on the states that the environment shows, set by
`world_loss.tokens=env_observations`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from spa.methods import Method
from spa.methods.context import Context
from spa.training.batch import on_tokens
from spa.training.loss_masks import env_state_mask
from spa.types import Episode, PPOBatch

_WORLD = "actor_rollout_ref.actor.world_loss"

METHODS = {
    "echo": Method(
        description="PPO plus cross-entropy on the states that the environment shows (ECHO)",
        ppo=(f"{_WORLD}.tokens=env_observations", f"{_WORLD}.coef=0.05"),
    ),
}


def annotate(batch: PPOBatch, episodes: Sequence[Episode], context: Context) -> PPOBatch:
    """Add a weight of 1 to the tokens of the states that follow the agent's actions."""
    loss = context.cfg.actor_rollout_ref.actor.world_loss
    if not loss.on or loss.tokens != "env_observations":
        return batch
    # With most settings of `actor.loss_mask`, the policy loss leaves out the environment's tokens,
    # and only this loss trains on them.
    shown = on_tokens(batch, episodes, partial(env_state_mask, template=context.template))
    return replace(batch, ce_weights=batch.ce_weights + shown)

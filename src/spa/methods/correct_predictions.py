"""Cross-entropy on the model's own correct predictions and observations, set by
`world_loss.tokens=correct_predictions`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from spa.methods import Method
from spa.methods.context import Context
from spa.training.batch import on_tokens
from spa.training.loss_masks import model_state_mask
from spa.types import Episode, PPOBatch

_WORLD = "actor_rollout_ref.actor.world_loss"

METHODS = {
    "right_beliefs": Method(
        description="PPO plus cross-entropy on the state blocks that the model predicted correctly",
        ppo=(f"{_WORLD}.tokens=correct_predictions", f"{_WORLD}.coef=0.1"),
    ),
}


def annotate(batch: PPOBatch, episodes: Sequence[Episode], context: Context) -> PPOBatch:
    """Add a weight of 1 to the tokens of correct observation and prediction blocks."""
    loss = context.cfg.actor_rollout_ref.actor.world_loss
    if not loss.on or loss.tokens != "correct_predictions":
        return batch
    # Unlike ECHO, which trains on tokens from the environment, this loss trains on tokens that the
    # policy sampled. It therefore reinforces the policy's own text where it is correct.
    correct = on_tokens(
        batch, episodes, partial(model_state_mask, template=context.template, right=True)
    )
    return replace(batch, ce_weights=batch.ce_weights + correct)

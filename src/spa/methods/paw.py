"""PaW (arXiv 2606.02388; reconstructed): a world loss that applies only after the least certain
answers (`world_loss.turns`) and shrinks as more episodes succeed (`world_loss.fade`). Its bounded
per-token loss is `world_loss.kind=clipped_error`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from spa.algo.losses import uncertain_turns
from spa.methods import Method
from spa.methods.context import Context
from spa.training.batch import is_trainable, on_tokens
from spa.training.loss_masks import answer_mask
from spa.types import Episode, PPOBatch

_WORLD = "actor_rollout_ref.actor.world_loss"

METHODS = {
    "paw": Method(
        description=(
            "PPO plus a clipped next-state prediction loss after uncertain responses (PaW, our "
            "reconstruction)"
        ),
        ppo=(
            f"{_WORLD}.tokens=env_observations",
            f"{_WORLD}.kind=clipped_error",
            f"{_WORLD}.turns=0.5",
            f"{_WORLD}.fade=true",
            f"{_WORLD}.coef=0.1",
        ),
    ),
}


def annotate(batch: PPOBatch, episodes: Sequence[Episode], context: Context) -> PPOBatch:
    """Change the weights of the world loss. With `fade`, multiply them by the share of failed
    episodes. With `turns` below 1, set them to 0 after the more certain answers."""
    loss = context.cfg.actor_rollout_ref.actor.world_loss
    if not loss.on:
        return batch
    weights = batch.ce_weights
    if loss.fade:
        # Episodes that the rollout filter dropped count as well, because without them the share of
        # successes would be biased.
        wins = [episode.success for episode in episodes if is_trainable(episode)]
        weights = weights * (wins.count(False) / len(wins))
    # Entropies cost a forward pass, so they are computed only if `turns` excludes some turns.
    if loss.turns < 1:
        answers = (
            on_tokens(batch, episodes, partial(answer_mask, template=context.template)) & batch.mask
        )
        weights = weights * uncertain_turns(
            context.entropies(batch), batch.turns, answers, share=loss.turns
        )
    return replace(batch, ce_weights=weights)

"""ActFocus (arXiv 2605.14558; reconstructed): a policy loss with more weight on answer tokens, set
by `answer_focus`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from spa.algo.losses import focus_weights
from spa.methods import Method
from spa.methods.context import Context
from spa.training.batch import on_tokens
from spa.training.loss_masks import answer_mask
from spa.types import Episode, PPOBatch

_FOCUS = "actor_rollout_ref.actor.answer_focus"

METHODS = {
    "act_focus": Method(
        description=(
            "PPO with more weight on uncertain tokens inside the answer block (ActFocus, our "
            "reconstruction)"
        ),
        ppo=(f"{_FOCUS}.alpha=0.2", f"{_FOCUS}.beta=1.0"),
    ),
}


def annotate(batch: PPOBatch, episodes: Sequence[Episode], context: Context) -> PPOBatch:
    """Multiply the weights of the policy loss by `focus_weights`."""
    focus = context.cfg.actor_rollout_ref.actor.answer_focus
    if focus.alpha == 1 and focus.beta == 0:
        return batch
    # `answer_mask` covers whole episodes; `batch.mask` limits it to the tokens trained here.
    answers = (
        on_tokens(batch, episodes, partial(answer_mask, template=context.template)) & batch.mask
    )
    # Entropies cost one more forward pass, so they are computed only where `beta` uses them.
    entropies = context.entropies(batch) if focus.beta > 0 else torch.zeros_like(batch.old_logprobs)
    weights = focus_weights(batch.mask, answers, entropies, alpha=focus.alpha, beta=focus.beta)
    return replace(batch, rl_weights=batch.rl_weights * weights)

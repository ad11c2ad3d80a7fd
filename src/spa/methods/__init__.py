"""Methods of the field: what a PPO step learns from its batch besides the reward. Equations:
docs/methods.md.

A method is one file with one function, `annotate(batch, episodes, context) -> batch`. It returns
the batch with other `rl_weights`, `ce_weights` or `advantages`, or with more rows; the same batch
if its settings switch it off. The update does not know which methods there are. A new one is a file
here and a place in `METHODS`.
"""

from collections.abc import Sequence

from spa.methods import act_focus, correct_predictions, echo, imagined_advantage, paw, replay
from spa.methods.context import Annotate, Context
from spa.types import Episode, PPOBatch

METHODS: tuple[Annotate, ...] = (
    act_focus.annotate,
    echo.annotate,
    correct_predictions.annotate,
    paw.annotate,  # after the two that it chooses from
    imagined_advantage.annotate,
    replay.annotate,  # last: its rows are no episodes
)


def annotate(batch: PPOBatch, episodes: Sequence[Episode], context: Context) -> PPOBatch:
    """The batch as the methods that are switched on want it.

    `episodes` are all of the step, failed and filtered ones too; `batch.episodes` counts them.
    """
    for method in METHODS:
        batch = method(batch, episodes, context)
    if context.cfg.actor_rollout_ref.actor.world_loss.on:
        # How much world text is trained for each sampled token.
        known = batch.ce_weights[batch.played] > 0
        context.metrics["rollout/world_tokens_ratio"] = float(
            known.sum() / batch.mask.sum().clamp(min=1)
        )
    return batch

"""World modelling as a reward during PPO instead of before it: after VAGEN (arXiv 2510.16907)."""

from collections.abc import Sequence
from dataclasses import replace

from spa.types import Episode, Turn
from spa.worldmodel.accuracy import score_state


def foreseen_changes(f1: float, within: float | None) -> float:
    """The score of a prediction: the F1 of the changed cells. With `within`: 1 if the distance 1 - F1
    is below it, else 0 (RWML, arXiv 2602.05842). RWML's own distance of embeddings does not
    separate boards that differ in one cell."""
    return f1 if within is None else float(f1 > 1 - within)


def with_world_model_reward(
    episodes: Sequence[Episode],
    *,
    observation: float,
    prediction: float,
    within: float | None = None,
) -> list[Episode]:
    """The episodes with `observation * S(observation, state) + prediction * S(prediction, next
    state)` added to the reward of every well-formed turn. S of a prediction is `foreseen_changes`
    with `within`.

    S of an observation is the share of its cells that are right. S of a prediction is the F1 of the
    cells that changed (`StateScore.changed_f1`), which a copy of the shown state cannot win. It
    is 0 where a change is missed, and 0 where nothing changed, so that a turn without effect earns
    nothing. A turn that is not in the world-model format gains nothing.
    """
    if not observation and not prediction:
        return list(episodes)

    def rewarded(turn: Turn) -> Turn:
        response = turn.response
        if not response.well_formed or response.observation is None:
            return turn
        # An observation describes a single state, so all its cells count.
        seen = score_state(response.observation, turn.target, None).unit_accuracy
        # A prediction counts for the changed cells only, since copying the other cells is easy.
        foreseen = score_state(response.prediction, turn.next_target, turn.target).changed_f1
        paid = observation * seen + prediction * foreseen_changes(foreseen, within)
        return replace(turn, reward=turn.reward + paid)

    return [
        replace(episode, turns=tuple(rewarded(turn) for turn in episode.turns))
        for episode in episodes
    ]

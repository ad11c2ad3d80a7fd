"""Advantages from imagined plans (after WM-PPO, arXiv 2611.12200; reconstructed), set by
`algorithm.imagined_advantage`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from spa.algo.imagined import agreement, lead
from spa.algo.masked import masked_mean
from spa.methods.context import Context
from spa.training.batch import is_trainable, on_tokens
from spa.types import Episode, PPOBatch, Turn


def annotate(batch: PPOBatch, episodes: Sequence[Episode], context: Context) -> PPOBatch:
    """Add a term to the advantages of each turn that chose one of its imagined plans. The term is
    the predicted value of that plan minus the mean over all plans of the turn. It is scaled by
    `algorithm.imagined_advantage` and by the agreement between predicted and observed values over
    the step's episodes."""
    coef = context.cfg.algorithm.imagined_advantage
    if coef == 0:
        return batch
    # Include episodes that the rollout filter dropped, so that the agreement is estimated from all
    # pairs of values.
    played = [episode for episode in episodes if is_trainable(episode)]
    values = {
        tag: _state_values(context, tag, played) for tag in {episode.tag for episode in played}
    }
    imagined = list[float]()
    came = list[float]()
    for episode in played:
        known = values[episode.tag]
        for _, turn, taken in _chosen_plans(episode):
            imagined.append(known[turn.response.options[taken][1]])
            came.append(known[turn.next_target])
    # All terms of the step have one factor. It is 0 unless predicted and observed values correlate
    # positively.
    trust = np.float32(coef * agreement(imagined, came))
    added = on_tokens(batch, episodes, lambda episode: trust * _leads(episode, values[episode.tag]))
    context.metrics["critic/advantages/imagined"] = float(masked_mean(added.abs(), batch.mask))
    return replace(batch, advantages=batch.advantages + added * batch.mask)


def _chosen_plans(episode: Episode) -> Iterator[tuple[int, Turn, int]]:
    """Yield (number of the turn, turn, index of the chosen plan) for each turn that chose one of
    its imagined plans."""
    for number, turn in enumerate(episode.turns):
        plans = [plan for plan, _ in turn.response.options]
        if turn.response.well_formed and turn.response.actions in plans:
            yield number, turn, plans.index(turn.response.actions)


def _leads(episode: Episode, values: Mapping[str, float]) -> np.ndarray:
    """Return, for each token, the predicted value of its turn's chosen plan minus the mean over all
    plans of the turn; float32 [T]. It is 0 in turns without a chosen plan."""
    # Tokens outside all turns have index -1, which selects the last entry.
    leads = np.zeros(len(episode.turns) + 1, dtype=np.float32)
    for number, turn, taken in _chosen_plans(episode):
        leads[number] = lead([values[state] for _, state in turn.response.options], taken)
    assert episode.turn_index is not None
    return leads[episode.turn_index]


def _state_values(context: Context, tag: str, episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the value of every predicted or observed state of the environment `tag`, by state
    text."""
    turns = [turn for episode in episodes if episode.tag == tag for turn in episode.turns]
    imagined = {state for turn in turns for _, state in turn.response.options}
    return context.state_values(tag, imagined | {turn.next_target for turn in turns})

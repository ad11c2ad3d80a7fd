"""Per-token values from the trainer, aligned with the episodes, for inspection."""

from collections.abc import Sequence

from spa.types import Episode, PPOBatch

Scores = dict[str, dict[str, list[float]]]
"""Episode id -> name -> one number per token of the episode [T]."""


def token_scores(batch: PPOBatch, episodes: Sequence[Episode]) -> Scores:
    """Advantages, returns and values of those `episodes` that are rows of `batch`, token-aligned.

    `episodes`: those that `batch.episodes` counts, or the first of them. The number of token t is
    that of its prediction, t - 1. The first token of a row, which nothing predicts, gets 0.
    Episodes that were filtered out are not in the result.
    """
    columns = {"advantages": batch.advantages, "returns": batch.returns, "values": batch.values}
    scores: Scores = {}
    for row in batch.played.nonzero()[:, 0].tolist():
        place = int(batch.episodes[row])
        if place >= len(episodes):
            continue
        episode = episodes[place]
        assert episode.token_ids is not None
        # Without the history an episode has a row for each turn.
        start = int(batch.starts[row])
        end = start + int(batch.lengths[row])
        by_name = scores.setdefault(episode.episode_id, {})
        for name, column in columns.items():
            if column is not None:
                numbers = by_name.setdefault(name, [0.0] * len(episode.token_ids))
                numbers[start + 1 : end] = [
                    round(value, 5) for value in column[row, : end - start - 1].tolist()
                ]
    return scores

"""What the trainer computed for single tokens, back in the episodes' own alignment, for people to
look at."""

from collections.abc import Sequence

import torch

from spa.types import Episode, PPOBatch

Scores = dict[str, dict[str, list[float]]]
"""Episode id -> name -> one number per token of the episode [T]."""


def token_scores(batch: PPOBatch, episodes: Sequence[Episode]) -> Scores:
    """Advantages, returns and values of those `episodes` that are rows of `batch`, token-aligned.

    A row belongs to the episode with its token ids; the number of token t is that of its
    prediction, t - 1, and the first token, which nothing predicts, gets 0. Episodes that were
    filtered out are not in the result.
    """
    played = batch.played.nonzero()[:, 0].tolist()
    rows = {_key(batch.input_ids[row, : int(batch.lengths[row])]): row for row in played}
    columns = {"advantages": batch.advantages, "returns": batch.returns, "values": batch.values}
    scores: Scores = {}
    for episode in episodes:
        if episode.token_ids is None:
            continue
        row = rows.get(_key(torch.from_numpy(episode.token_ids)))
        if row is not None:
            length = len(episode.token_ids)
            scores[episode.episode_id] = {
                name: [0.0, *(round(value, 5) for value in column[row, : length - 1].tolist())]
                for name, column in columns.items()
                if column is not None
            }
    return scores


def _key(ids: torch.Tensor) -> bytes:
    return ids.to(device="cpu", dtype=torch.int32).numpy().tobytes()

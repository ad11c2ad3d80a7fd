"""Convert episodes to tensors, select and split rows, and map per-token results back to episodes
for inspection.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from spa.models.vision import ImageReader
from spa.types import Episode, EpisodeBatch, PPOBatch, StopReason, TokenBatch

LossMask = Literal["sampled", "answer_only", "no_states", "all_after_system"]
Batch = TypeVar("Batch", bound=TokenBatch)


def is_trainable(episode: Episode) -> bool:
    """Return whether an episode has tokens and ended without an error."""
    return episode.stop is not StopReason.ERROR and episode.token_ids is not None


def batch_episodes(
    episodes: Sequence[Episode],
    *,
    tags: Sequence[str],
    pad_id: int,
    turn_scores: bool = False,
    mask_of: Sequence[np.ndarray] | None = None,
    reader: ImageReader | None = None,
) -> EpisodeBatch:
    """Right-pad episodes into an EpisodeBatch, and shift token-aligned arrays [T] to
    prediction-aligned ones [A]. Raises ValueError if an episode has no tokens.

    `tags` lists all environment tags; an episode's tag id is the index of its tag. With
    `turn_scores`, each turn's score is on the last sampled token of the turn; otherwise their sum
    is on the last sampled token of the episode. `mask_of` has a mask, bool [T], per episode, which
    replaces the mask of sampled tokens. `reader` encodes the episodes' images for a vision model.
    `rl_weights` is 1 on every token in the mask.
    """
    width = max(len(episode.token_ids) for episode in episodes if episode.token_ids is not None)
    shape = (len(episodes), width)
    ids = np.full(shape, pad_id, dtype=np.int64)
    mask = np.zeros(shape, dtype=bool)
    ends = np.zeros(shape, dtype=bool)
    turns = np.full(shape, -1, dtype=np.int64)
    logprobs = np.zeros(shape, dtype=np.float32)
    rewards = np.zeros(shape, dtype=np.float32)
    for row, episode in enumerate(episodes):
        tokens = episode.token_ids
        sampled = episode.sampled
        index = episode.turn_index
        if tokens is None or sampled is None or index is None or episode.logprobs is None:
            raise ValueError(
                f"Episode {episode.episode_id} has no tokens; batches need episodes that a model "
                "with a tokenizer played"
            )
        n = len(tokens)
        ids[row, :n] = tokens
        turns[row, :n] = index
        logprobs[row, :n] = episode.logprobs
        mask[row, :n] = sampled if mask_of is None else mask_of[row]
        # Every loss mask contains the last sampled token of a turn, so `sampled` determines the
        # last tokens.
        last = _last_sampled(sampled, index, len(episode.turns))
        ends[row, last] = True
        scores = [turn.score for turn in episode.turns]
        if turn_scores:
            rewards[row, last] = scores
        else:
            rewards[row, last[-1:]] = sum(scores)
    shift = slice(1, None)  # the prediction of token t is entry t - 1
    return EpisodeBatch(
        input_ids=torch.from_numpy(ids),
        lengths=torch.tensor([len(e.token_ids) for e in episodes if e.token_ids is not None]),
        mask=torch.from_numpy(mask[:, shift].copy()),
        turns=torch.from_numpy(turns[:, shift].copy()),
        turn_ends=torch.from_numpy(ends[:, shift].copy()),
        rewards=torch.from_numpy(rewards[:, shift].copy()),
        scores=torch.tensor([episode.score for episode in episodes], dtype=torch.float32),
        group_ids=torch.tensor([episode.group for episode in episodes]),
        tag_ids=torch.tensor([tags.index(episode.tag) for episode in episodes]),
        sampler_logprobs=torch.from_numpy(logprobs[:, shift].copy()),
        rl_weights=torch.from_numpy(mask[:, shift].astype(np.float32)),
        ce_weights=torch.zeros(len(episodes), width - 1),
        episodes=torch.arange(len(episodes)),
        starts=torch.zeros(len(episodes), dtype=torch.int64),
        anchors=_shifted(anchors(episodes), width),
        truncated=torch.tensor(
            [episode.stop in (StopReason.MAX_TURNS, StopReason.CONTEXT) for episode in episodes]
        ),
        images=None if reader is None else reader.rows([episode.images for episode in episodes]),
        sampled=None
        if mask_of is None
        else _shifted([e.sampled for e in episodes if e.sampled is not None], width),
    )


def anchors(episodes: Sequence[Episode]) -> list[np.ndarray]:
    """Return, for each token of an episode, the id of the state in which its turn began, as int64
    [T]. Equal states have equal ids, also across episodes. The number of actions left is part of
    the state, because the possible return depends on it."""
    known: dict[tuple[str, int], int] = {}
    out = []
    for episode in episodes:
        numbers = [
            known.setdefault((turn.state, turn.actions_left), len(known)) for turn in episode.turns
        ]
        assert episode.turn_index is not None
        # Tokens before the first turn have index -1, which selects the 0 at the end of the list.
        out.append(
            np.asarray([*numbers, 0])[episode.turn_index.clip(-1, len(numbers) - 1)].astype(
                np.int64
            )
        )
    return out


def on_tokens(
    batch: EpisodeBatch, episodes: Sequence[Episode], values_of: Callable[[Episode], np.ndarray]
) -> torch.Tensor:
    """Collect per-token results of episodes for the tokens in the batch. `values_of(episode)`
    returns the results of an episode, [T]. Returns [B, A]; 0 for tokens without a result.

    `episodes` are all episodes of the step, which `batch.episodes` indexes.
    """
    numbers = batch.episodes.tolist()
    # Replayed examples (-1) have no episode.
    values = {number: values_of(episodes[number]) for number in sorted({*numbers} - {-1})}
    kind = next(iter(values.values())).dtype if values else np.dtype(np.float32)
    out = np.zeros((len(batch), batch.input_ids.shape[1]), dtype=kind)
    for row, number in enumerate(numbers):
        if number >= 0:
            # If prompts have no history, a row is a slice of its episode's tokens.
            start = int(batch.starts[row])
            length = int(batch.lengths[row])
            out[row, :length] = values[number][start : start + length]
    return torch.from_numpy(out[:, 1:].copy())  # the prediction of token t is entry t - 1


def _shifted(rows: Sequence[np.ndarray], width: int) -> torch.Tensor:
    """Pad token-aligned arrays [T] and shift them to prediction-aligned [B, A]; 0 in the padding."""
    out = np.zeros((len(rows), width), dtype=rows[0].dtype)
    for row, values in enumerate(rows):
        out[row, : len(values)] = values
    return torch.from_numpy(out[:, 1:].copy())


def _last_sampled(sampled: np.ndarray, turn_index: np.ndarray, turns: int) -> np.ndarray:
    """Return the index of the last sampled token of each turn, int64 [turns]."""
    where = np.flatnonzero(sampled)
    # `turn_index` never decreases, so the last token of turn k comes before the tokens of later
    # turns.
    last = np.searchsorted(turn_index[where], np.arange(turns), side="right") - 1
    return where[last]


def select(batch: Batch, rows: torch.Tensor) -> Batch:
    """Select rows (int64 indices or bool [B]) and trim the padding to the longest of them."""
    picked: dict[str, Any] = {}
    width = int(batch.lengths[rows].max()) if len(rows) else 1
    for name in (f.name for f in fields(batch)):
        value = getattr(batch, name)
        if value is not None:
            value = value[rows]
            if isinstance(value, torch.Tensor) and value.ndim == 2:
                # `input_ids` is [B, T], all other tensors of two axes are [B, A].
                value = value[:, : width if name == "input_ids" else width - 1]
        picked[name] = value
    return type(batch)(**picked)


def split_turns(batch: EpisodeBatch) -> EpisodeBatch:
    """Split each row into one row per turn. This is for episodes whose turns are separate
    conversations, stored one after the other.

    The last token of each turn gets the sum of the rewards from that turn on. Without a discount,
    every turn then has the same return as in a single row. Only the last turn can count as
    truncated.
    """
    assert batch.images is None
    rows = list[int]()
    starts = list[int]()
    ends = list[int]()
    for row in range(len(batch)):
        length = int(batch.lengths[row])
        # Entry a is the turn of token a + 1. The first prompt has turn -1, but belongs to turn 0.
        index = batch.turns[row, : length - 1].clamp(min=0)
        first = [0, *(int(a) + 1 for a in (index[1:] != index[:-1]).nonzero()[:, 0] + 1)]
        rows += [row] * len(first)
        starts += first
        ends += [*first[1:], length]
    lengths = torch.tensor(ends) - torch.tensor(starts)
    width = int(lengths.max())
    # True on the last turn of each episode.
    last = torch.tensor([a != b for a, b in zip(rows, [*rows[1:], -1], strict=True)])
    parts: dict[str, Any] = {}
    for name in (f.name for f in fields(batch)):
        value = getattr(batch, name)
        if isinstance(value, torch.Tensor) and value.ndim == 2:
            columns = width if name == "input_ids" else width - 1
            cut = value.new_full((len(rows), columns), -1 if name == "turns" else 0)
            for new, (row, start, end) in enumerate(zip(rows, starts, ends, strict=True)):
                stop = end if name == "input_ids" else end - 1
                cut[new, : stop - start] = value[row, start:stop]
            value = cut
        elif value is not None:
            value = value[torch.tensor(rows)]
        parts[name] = value
    parts["lengths"] = lengths
    parts["starts"] = parts["starts"] + torch.tensor(starts)
    if batch.truncated is not None:
        parts["truncated"] = parts["truncated"] & last
    # Later turns are in other rows, so each row gets the sum of the rewards from its turn on.
    for new, (row, start) in enumerate(zip(rows, starts, strict=True)):
        where = parts["turn_ends"][new].nonzero()[-1:, 0]
        parts["rewards"][new] = 0.0
        parts["rewards"][new, where] = batch.rewards[row, start:].sum()
    return type(batch)(**parts)


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """Move a batch to another device."""
    moved: dict[str, Any] = {f.name: getattr(batch, f.name) for f in fields(batch)}
    return type(batch)(**_values(moved, device))


def _values(moved: dict[str, Any], device: torch.device | str) -> dict[str, Any]:
    return {name: None if value is None else value.to(device) for name, value in moved.items()}


Scores = dict[str, dict[str, list[float]]]
"""Episode id -> name -> one number per token of the episode [T]."""


def token_scores(batch: PPOBatch, episodes: Sequence[Episode]) -> Scores:
    """Return the advantages, returns and values of `episodes` per token, for inspection.

    `episodes` are the episodes that `batch.episodes` indexes, or only the first few of them. The
    values of token t are entry t - 1 of the batch. The first token of a row, which is not
    predicted, gets 0. Episodes that were filtered out, and so have no row in `batch`, are omitted.
    """
    columns = {"advantages": batch.advantages, "returns": batch.returns, "values": batch.values}
    scores: Scores = {}
    for row in batch.played.nonzero()[:, 0].tolist():
        place = int(batch.episodes[row])
        if place >= len(episodes):
            continue
        episode = episodes[place]
        assert episode.token_ids is not None
        # Without history, an episode has one row per turn.
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

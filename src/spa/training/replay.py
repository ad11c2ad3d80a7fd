"""Rows of fine-tuning beside the episodes of a PPO update (docs/methods.md)."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from spa.types import PPOBatch

Replayed = tuple[np.ndarray, np.ndarray]
"""int32 [t] token ids, and bool [t]: which of them are learnt."""


def with_replay(
    batch: PPOBatch, mini_batches: Sequence[Sequence[torch.Tensor]], rows: Sequence[Replayed]
) -> tuple[PPOBatch, list[list[torch.Tensor]]]:
    """The batch with `rows` behind its episodes, and the mini-batches with equally many of them in each.

    The added rows have no sampled token, so that they count in no mean of the policy loss; `replay` is 1 on the tokens
    that are learnt from them. `mini_batches` are per epoch the row indices of each, the number of rows a multiple of
    how many there are.
    """
    count, old = len(rows), len(batch)
    width = max(batch.input_ids.shape[1], *(len(ids) for ids, _ in rows))
    ids, learnt = torch.zeros(count, width, dtype=torch.int64), torch.zeros(old + count, width)
    for row, (tokens, mask) in enumerate(rows):
        ids[row, : len(tokens)] = torch.from_numpy(tokens.astype(np.int64))
        learnt[old + row, : len(mask)] = torch.from_numpy(mask.astype(np.float32))
    found: dict[str, Any] = {f.name: getattr(batch, f.name) for f in fields(batch)}
    for name, value in found.items():
        if isinstance(value, torch.Tensor):
            found[name] = _longer(value, count, width - (name != "input_ids"), fill=-1 if name == "turns" else 0)
    found["input_ids"][old:] = ids
    found["lengths"][old:] = torch.tensor([len(tokens) for tokens, _ in rows])
    found["replay"] = learnt[:, 1:]  # the prediction of token t is entry t - 1
    pieces = iter(torch.arange(old, old + count).split(count // sum(map(len, mini_batches))))
    return PPOBatch(**found), [[torch.cat([picked, next(pieces)]) for picked in epoch] for epoch in mini_batches]


def _longer(value: torch.Tensor, rows: int, width: int, fill: int) -> torch.Tensor:
    """`value` with rows, and columns if it has any, of `fill`."""
    shape = (len(value) + rows, width) if value.ndim == 2 else (len(value) + rows,)
    out = torch.full(shape, fill, dtype=value.dtype)
    out[tuple(slice(0, size) for size in value.shape)] = value
    return out

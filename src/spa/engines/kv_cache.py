"""Key/value caches of single episodes, and the batched cache for sampling.

Between turns, an episode's keys and values are one row without gaps (`EpisodeKV`) in a `KVStore`. A
store has the rows that left a batch together. For a call of the engine, the rows are copied into
one `GrowingCache`. Rows of different lengths leave gaps, which the attention mask excludes. A
prefix that all rows of a batch share may be stored once (`Head`), so that a decoding step reads it
once instead of once per row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

# Placeholder for tensors whose memory has been released.
_GONE = torch.empty(0)
Head = list[tuple[torch.Tensor, torch.Tensor]]
"""Per layer, keys and values [K, c, D] of a prefix of c tokens that all rows of a batch share."""


class KVStore:
    """KV cache of rows that left a batch together: keys and values [R, H, c, D] per layer for the
    tokens after `head`. Every row is filled from the left. Entries beyond the row's length are
    undefined."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.episodes: WeakSet[EpisodeKV] = WeakSet()  # episodes that may still have a next turn

    def columns(
        self, layer: int, part: int, rows: torch.Tensor, start: int, stop: int
    ) -> torch.Tensor:
        """Return the keys (`part` 0) or values (`part` 1), [r, H, stop - start, D], of tokens
        `start` to `stop` of `rows`, int64 [r]. Keys and values are returned by separate calls,
        because copies of both may not fit into memory."""
        own = (self.keys, self.values)[part][layer]
        if not self.head:
            return own[rows, :, start:stop]
        early = self.head[layer][part].expand(len(rows), -1, -1, -1)
        return torch.cat([early, own[rows]], dim=2)[:, :, start:stop]

    def shrink(self) -> None:
        """Drop the rows of finished episodes once these are at least half of all rows."""
        living = list(self.episodes)
        # Copying the remaining rows pays off once it frees half of the memory.
        if not living or 2 * len(living) > len(self.keys[0]):
            return
        rows = torch.tensor([episode.row for episode in living], device=self.keys[0].device)
        for index in range(len(self.keys)):
            self.keys[index] = self.keys[index][rows]
            self.values[index] = self.values[index][rows]
        for row, episode in enumerate(living):
            episode.row = row


@dataclass(slots=True, weakref_slot=True, eq=False)
class EpisodeKV:
    """KV cache of one episode, in row `row` of `store`.

    `ids`, int32 [c], are the tokens whose keys and values are cached.
    """

    ids: np.ndarray
    store: KVStore
    row: int

    def covers(self, token_ids: np.ndarray) -> bool:
        """Return whether the cached tokens are a proper prefix of `token_ids`, so that at least one
        token is left to read."""
        return len(self.ids) < len(token_ids) and np.array_equal(
            self.ids, token_ids[: len(self.ids)]
        )


class GrowingLayer(DynamicLayer):
    """Cache layer that writes into a buffer with spare columns, so that a new token does not copy
    the whole cache."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Append keys and values [B, H, q, D]. Returns all keys and values so far, as views [B, H,
        length, D] of the buffers."""
        end = self.length + key_states.shape[-2]
        if not self.is_initialized:
            self.dtype = key_states.dtype
            self.device = key_states.device
            self.is_initialized = True
            self._keys = key_states.new_empty((*key_states.shape[:2], 0, key_states.shape[-1]))
            self._values = value_states.new_empty(
                (*value_states.shape[:2], 0, value_states.shape[-1])
            )
        if end > self._keys.shape[-2]:
            # The number of spare columns grows with the length, which keeps the total cost of
            # copying small.
            self._keys = _grown(self._keys, self.length, end + max(64, end // 8))
            self._values = _grown(self._values, self.length, end + max(64, end // 8))
        self._keys[:, :, self.length : end] = key_states
        self._values[:, :, self.length : end] = value_states
        self.length = end
        self.keys = self._keys[:, :, :end]
        self.values = self._values[:, :, :end]
        return self.keys, self.values

    def buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the buffers of keys and values, [B, H, columns, D]. Spare columns are zero."""
        return self._keys, self._values

    def get_seq_length(self) -> int:
        """Return the number of columns in use."""
        return self.length

    def adopt(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Use these keys and values [B, H, c, D] as the buffers, without copying them."""
        self.dtype = keys.dtype
        self.device = keys.device
        self.is_initialized = True
        self._keys = self.keys = keys
        self._values = self.values = values
        self.length = keys.shape[-2]

    def empty(self) -> None:
        """Release the memory of the buffers."""
        self._keys = self._values = self.keys = self.values = _GONE
        self.length = 0

    def taken(self, rows: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of the keys and values, each [R, H, c, D], in `columns`, int64 [R, c], of
        `rows`, int64 [R]."""
        # Indexing with two tensors around a slice puts their axes first: [R, c, H, D].
        return (
            self._keys[rows[:, None], :, columns].transpose(1, 2),
            self._values[rows[:, None], :, columns].transpose(1, 2),
        )

    def select_rows(self, rows: torch.Tensor) -> None:
        """Keep only these rows of the batch."""
        self._keys = self._keys[rows]
        self._values = self._values[rows]
        self.keys = self._keys[:, :, : self.length]
        self.values = self._values[:, :, : self.length]


def _grown(buffer: torch.Tensor, used: int, columns: int) -> torch.Tensor:
    rows, heads, _, width = buffer.shape
    out = buffer.new_empty((rows, heads, columns, width))
    out[:, :, :used] = buffer[:, :, :used]
    # Attention multiplies unused columns by 0, and 0 times an uninitialized NaN would be NaN.
    out[:, :, used:] = 0
    return out


class GrowingCache(DynamicCache):
    """A Hugging Face cache with layers of type `GrowingLayer`."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self._growing = [GrowingLayer() for _ in range(layers)]
        self.layers = list(self._growing)
        self.head: Head = []

    @property
    def shared(self) -> int:
        """Number of tokens in the prefix that all rows share. It is stored once, separately from
        the cache's own columns."""
        return self.head[0][0].shape[1] if self.head else 0

    def lay_out(self, rows: list[EpisodeKV | None]) -> None:
        """Fill the empty cache with these rows. Each row's tokens after the head begin at column 0.
        None stands for an empty row.

        The given rows must not be used afterwards. A store whose episodes are all in the batch is
        freed layer by layer, because it may fill most of a GPU. Other stores shrink later
        (`KVStore.shrink`).
        """
        parts: dict[KVStore, list[tuple[int, EpisodeKV]]] = {}
        for place, row in enumerate(rows):
            if row is not None:
                parts.setdefault(row.store, []).append((place, row))
        if not parts:
            return
        skipped = self.shared
        width = max(len(row.ids) for row in rows if row is not None) - skipped
        device = next(iter(parts)).keys[0].device
        # For each store: the rows to copy, their indices in the batch, the number of columns to
        # copy, and True if all episodes of the store are in the batch.
        moves = [
            (
                store,
                torch.tensor([row.row for _, row in part], device=device),
                torch.tensor([place for place, _ in part], device=device),
                max(len(row.ids) for _, row in part) - skipped,
                len(part) == len(store.episodes),
            )
            for store, part in parts.items()
        ]
        for index, layer in enumerate(self._growing):
            like = moves[0][0]
            # In some models, values and keys differ in width.
            keys, values = (
                held[index].new_zeros(
                    (len(rows), held[index].shape[1], width, held[index].shape[3])
                )
                for held in (like.keys, like.values)
            )
            for store, source, target, columns, used_up in moves:
                stop = skipped + columns
                keys[target, :, :columns] = store.columns(index, 0, source, skipped, stop).to(
                    keys.dtype
                )
                values[target, :, :columns] = store.columns(index, 1, source, skipped, stop).to(
                    values.dtype
                )
                if used_up:
                    store.keys[index] = store.values[index] = _GONE
            layer.adopt(keys, values)

    def append(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values [B, H, q, D] to a layer. Returns the layer's whole buffers,
        contiguous [B, H, columns, D] and zero beyond the columns in use.

        A matrix product over part of a buffer would first copy that part.
        """
        self._growing[layer].update(keys, values)
        return self._growing[layer].buffers()

    def select_rows(self, rows: torch.Tensor) -> None:
        """Keep only these rows of the batch (repeats allowed)."""
        for layer in self._growing:
            layer.select_rows(rows)

    def take_rows(
        self, rows: torch.Tensor, columns: torch.Tensor, ids: Sequence[np.ndarray], *, last: bool
    ) -> list[EpisodeKV]:
        """Copy `rows`, int64 [R], to a new store, without their gaps.

        `ids` has the cached tokens, int32, of each row. Each row of `columns`, int64 [R, c], begins
        with the columns of the row's tokens after the head. Its other entries are arbitrary.

        With `last`, the cache is emptied, and its layers are freed one by one.
        """
        store = KVStore(self.head)
        for layer in self._growing:
            keys, values = layer.taken(rows, columns)
            store.keys.append(keys)
            store.values.append(values)
            if last:
                layer.empty()
        episodes = [EpisodeKV(ids=held, store=store, row=row) for row, held in enumerate(ids)]
        store.episodes.update(episodes)
        return episodes


def head_of(episode: EpisodeKV, tokens: int) -> Head:
    """Copy the keys and values of the first `tokens` cached tokens of an episode."""
    store = episode.store
    row = torch.tensor([episode.row], device=store.keys[0].device)

    def part_of(layer: int, part: int) -> torch.Tensor:
        return store.columns(layer, part, row, 0, tokens)[0].contiguous()

    return [(part_of(layer, 0), part_of(layer, 1)) for layer in range(len(store.keys))]


# Read the common prefix of each group of rows separately if this reduces the number of tokens to
# read, padding included, to at most this share.
_MUCH_LESS = 0.75


def common_length(one: np.ndarray, other: np.ndarray) -> int:
    """Return the length of the common prefix of two rows of tokens."""
    tokens = min(len(one), len(other))
    differs = np.flatnonzero(one[:tokens] != other[:tokens])
    return int(differs[0]) if len(differs) else tokens


def shared_beginnings(rows: Sequence[np.ndarray]) -> list[tuple[int, int]] | None:
    """Group rows of token ids, int [T], by common prefix. Returns the group and the prefix length
    of each row, or None if reading each prefix once saves too little.

    A row joins a group if it shares more tokens with the group than the other rows lose because the
    prefix gets shorter. At least one token of each row is not in the prefix.
    """
    groups: list[list[int]] = []
    tokens: list[int] = []
    # After sorting by tokens, neighbouring rows have the longest common prefixes.
    for i in sorted(range(len(rows)), key=lambda i: rows[i].tolist()):
        shared = common_length(rows[groups[-1][0]][: tokens[-1]], rows[i][:-1]) if groups else 0
        if groups and shared > (tokens[-1] - shared) * len(groups[-1]):
            groups[-1].append(i)
            tokens[-1] = shared
        else:
            groups.append([i])
            tokens.append(len(rows[i]) - 1)
    found = {i: (number, tokens[number]) for number, group in enumerate(groups) for i in group}
    rest = max(len(ids) - found[i][1] for i, ids in enumerate(rows))
    # Compare the tokens to read with groups and without, padding included.
    if len(groups) * max(tokens) + len(rows) * rest > _MUCH_LESS * len(rows) * max(map(len, rows)):
        return None
    return [found[i] for i in range(len(rows))]

"""Sample on a GPU with CUDA graphs.

Each layer has one buffer for the keys and values of all episodes, which is allocated once. It is
divided into *slots* of a fixed number of columns; an episode keeps its slot from turn to turn. One
call of `Decoder.generate`:

1. `_read_prompts` reads the new tokens, packed one row after another without padding. A prefix that
   several rows share is read once, and its keys and values are copied to their slots.
2. `_sample` samples the first token of every row.
3. `_decode` repeats the decode step (`_step`) until all rows have ended:
   a. every layer writes the key and value of the row's last token to the next column of its slot,
      and attends to the columns in use (`_hidden`);
   b. one token per row is sampled from the logits, with the row's own random numbers (`_sample`);
   c. ids, log-probs and ends of all rows go to the CPU in one transfer.

A CUDA graph is a recorded sequence of kernels that is launched with one call. Its kernels read and
write the same memory each time, so everything that changes between steps is in `_State`, and the
step itself updates it. There is one graph for each of a few batch sizes. Padding rows and rows that
have ended are computed too, and their results are ignored. When enough rows have ended, the others
move to a smaller graph. Graphs are kept until the buffers change: new weights are copied into the
memory of the old ones.

On a CPU the same functions run without graphs, so that tests can compare them with the local
engine's other code path (`spa.engines.local`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from spa.engines.fused import FusedModel
from spa.engines.kv_cache import common_length, shared_beginnings
from spa.engines.sampling import row_uniforms, sample_tokens
from spa.models.attention import varlen_attention
from spa.run import watchdog
from spa.types import Prompt, SamplingParams

READ_TOKENS = 16384  # tokens per pass over prompts; the last row may exceed it
COLUMNS = 256  # slots have a multiple of this many columns
# The KV cache stays allocated between rollouts if it takes at most this share of the GPU's memory.
KEPT_SHARE = 1 / 16
NO_TOKENS = np.empty(0, dtype=np.int32)


@dataclass(slots=True)
class Slot:
    """Slot for the keys and values of an episode. `number` is its index in the buffers. `ids`,
    int32 [c], are the tokens whose keys and values it contains."""

    number: int
    ids: np.ndarray


Step = Callable[[], None]
"""Decode step for one batch size: the replay of a CUDA graph, or a plain function on a CPU."""


class _State:
    """State that a decode step reads and updates, with one entry per row. Its memory addresses are
    fixed. Padding rows have `alive` False and use the spare slot, which is never assigned to an
    episode."""

    def __init__(self, rows: int, columns: int, spare_slot: int, device: torch.device) -> None:
        self.spare_slot = spare_slot
        self.token = torch.zeros(
            rows, dtype=torch.int64, device=device
        )  # sampled, but not yet fed to the model
        self.position = torch.zeros_like(self.token)  # column of `token`
        self.slot = torch.full_like(self.token, spare_slot)
        self.alive = torch.zeros(rows, dtype=torch.bool, device=device)  # until the response ends
        self.uniforms = torch.zeros(rows, columns, dtype=torch.float64, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self.results = torch.zeros(3, rows, dtype=torch.float64, device=device)
        """Sampled id, its log-prob, and whether it ends the response."""

    def pad(self, rows: int) -> None:
        """Turn every row after the first `rows` into padding."""
        self.slot[rows:] = self.spare_slot
        self.position[rows:] = 0
        self.alive[rows:] = False

    def clear(self) -> None:
        """Turn all rows into padding, and reset the step to 0."""
        self.pad(0)
        self.step.zero_()

    def begin(self, slots: torch.Tensor, lengths: torch.Tensor, uniforms: torch.Tensor) -> None:
        """Start rows whose prompts have been read. `slots`, int64 [n], contains the slot of each
        row. `lengths`, int64 [n], contains the number of tokens of each prompt. `uniforms`, float64
        [n, tokens], contains the random numbers."""
        rows = len(slots)
        self.clear()
        self.slot[:rows] = slots
        # `_sample` moves a row to the column of the token that it samples.
        self.position[:rows] = lengths - 1
        self.alive[:rows] = True
        self.uniforms[:rows, : uniforms.shape[1]] = uniforms

    def keep(self, rows: torch.Tensor) -> None:
        """Move these rows, int64 [n], to the front, and turn the others into padding."""
        for part in (self.token, self.position, self.slot, self.alive, self.uniforms):
            part[: len(rows)] = part[rows]
        self.pad(len(rows))


class Decoder:
    """Samples responses with the matrices of a `FusedModel`. `stop_ids` are the tokens that end a
    response."""

    def __init__(self, matrices: FusedModel, stop_ids: Sequence[int], device: torch.device) -> None:
        self.matrices = matrices
        self.device = device
        self.stop_ids = torch.tensor(sorted(stop_ids), device=device)
        self.slots: dict[str, Slot] = {}  # slots of episodes that may have a next turn
        self.kept_bytes = 0.0
        if device.type == "cuda":
            self.kept_bytes = KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory
        # The largest numbers of slots, rows of a batch, and columns of a slot needed so far.
        self.largest: tuple[int, ...] = (0, 0, 0)
        self.release()

    def release(self) -> None:
        """Free the GPU memory of keys, values and graphs."""
        self.slots.clear()
        self.buffers: list[torch.Tensor] = []  # one per layer, [2, slots + 1, columns, K, D]
        self.state: Any = None
        self._drop_steps()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _drop_steps(self) -> None:
        self.steps: dict[tuple[int, SamplingParams], Step] = {}
        # PyTorch rejects a memory pool whose graphs have all been deleted.
        self.pool: Any = None

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Free the slots of these episodes. If no slot is in use afterwards and the buffers are
        larger than `kept_bytes`, their memory is released for the trainer."""
        for episode_id in episode_ids:
            self.slots.pop(episode_id, None)
        if not self.slots and sum(buffer.nbytes for buffer in self.buffers) > self.kept_bytes:
            self.release()

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingParams
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Sample one response per prompt, in order. Returns the ids, int32 [L], and log-probs,
        float32 [L], of each."""
        slots = self._take_slots(prompts, sampling.max_tokens)
        # The matrices are already in the right dtype; autocast would only lower the precision of
        # other operations.
        with torch.autocast(self.device.type, enabled=False):
            steps = self._steps(len(prompts), sampling)
            hidden = self._read_prompts(prompts, slots)
            self.state.begin(
                self._tensor([slot.number for slot in slots]),
                self._tensor([len(prompt.token_ids) for prompt in prompts]),
                row_uniforms(prompts, sampling.max_tokens).to(self.device),
            )
            self._sample(hidden, sampling)
            responses = self._decode(len(prompts), steps, sampling.max_tokens)
        for prompt, slot, (ids, _) in zip(prompts, slots, responses, strict=True):
            if prompt.continued:
                # The last sampled token has not been read.
                slot.ids = np.concatenate([prompt.token_ids, ids[:-1]])
                self.slots[prompt.episode_id] = slot
        return responses

    def _take_slots(self, prompts: Sequence[Prompt], new_tokens: int) -> list[Slot]:
        """Return the slot of each prompt: the slot that its episode already has, or a free one."""
        asked = {prompt.episode_id for prompt in prompts}
        others = sum(episode_id not in asked for episode_id in self.slots)
        longest = max(len(prompt.token_ids) for prompt in prompts)
        self._reserve(others + len(prompts), len(prompts), longest + new_tokens)
        used = {slot.number for slot in self.slots.values()}
        free = (number for number in range(self.largest[0]) if number not in used)
        return [
            self.slots.pop(prompt.episode_id, None) or Slot(next(free), NO_TOKENS)
            for prompt in prompts
        ]

    def _reserve(self, slots: int, rows: int, columns: int) -> None:
        """Ensure that memory for this many slots, rows of a batch and columns of a slot is
        allocated. If the buffers grow, their contents are copied."""
        wanted = (slots, _batch_sizes(rows)[0], -(-columns // COLUMNS) * COLUMNS)
        needed = tuple(map(max, wanted, self.largest))
        if self.buffers and needed == self.largest:
            return
        self.largest = needed
        # Recorded graphs read the old addresses.
        self._drop_steps()
        spare, rows, self.columns = needed
        shape = (2, spare + 1, self.columns, self.matrices.key_heads, self.matrices.width)
        old = self.buffers
        self.buffers = []
        for _ in self.matrices.layers:
            buffer = torch.zeros(shape, dtype=self.matrices.dtype, device=self.device)
            if old:
                # Copy layer by layer, so that only one layer is in memory twice.
                small = old.pop(0)
                buffer[:, : small.shape[1], : small.shape[2]] = small
            self.buffers.append(buffer)
        self.state = _State(rows, self.columns, spare, self.device)

    def _read_prompts(self, prompts: Sequence[Prompt], slots: Sequence[Slot]) -> torch.Tensor:
        """Read the prompts into their slots. Returns the hidden states [B, H] of each prompt's last
        token."""
        numbers = [slot.number for slot in slots]
        # At least one token of each prompt is read, because its hidden state is needed.
        starts = [
            min(common_length(slot.ids, prompt.token_ids), len(prompt.token_ids) - 1)
            for prompt, slot in zip(prompts, slots, strict=True)
        ]
        fresh = [row for row, start in enumerate(starts) if start == 0]
        groups = shared_beginnings([prompts[row].token_ids for row in fresh]) if fresh else None
        if groups:
            first_rows: dict[int, int] = {}
            for row, (group, tokens) in zip(fresh, groups, strict=True):
                first_rows.setdefault(group, row)
                starts[row] = tokens
            begun = [row for row in first_rows.values() if starts[row] > 0]
            self._read(
                [prompts[row].token_ids[: starts[row]] for row in begun],
                [numbers[row] for row in begun],
                [0] * len(begun),
            )
            sources = self._tensor([numbers[first_rows[group]] for group, _ in groups])
            targets = self._tensor([numbers[row] for row in fresh])
            longest = max(tokens for _, tokens in groups)
            for buffer in self.buffers:
                buffer[:, targets, :longest] = buffer[:, sources, :longest]
        new = [prompt.token_ids[start:] for prompt, start in zip(prompts, starts, strict=True)]
        return self._read(new, numbers, starts)

    def _read(
        self, rows: Sequence[np.ndarray], slots: Sequence[int], starts: Sequence[int]
    ) -> torch.Tensor:
        """Read each row's tokens, int32 [T], into its slot, beginning at the column in `starts`.
        Returns the hidden states [B, H] of each row's last token. A pass reads about `READ_TOKENS`
        tokens; no row is split."""
        counts = np.array([len(ids) for ids in rows])
        passes = counts.cumsum() // READ_TOKENS
        parts = []
        for number in np.unique(passes):
            watchdog.beat()
            some = np.flatnonzero(passes == number).tolist()
            columns = [np.arange(starts[i], starts[i] + counts[i]) for i in some]
            query_starts = self._tensor(np.append(0, counts[some].cumsum()))
            row_slots = np.asarray(slots)[some]
            hidden = self._hidden(
                self._tensor(np.concatenate([rows[i] for i in some])),
                self._tensor(np.concatenate(columns)),
                self._tensor(row_slots.repeat(counts[some])),
                query_starts=query_starts.int(),
                longest_query=int(counts[some].max()),
                row_slots=self._tensor(row_slots),
                lengths=self._tensor(np.asarray(starts)[some] + counts[some]),
            )
            parts.append(hidden[query_starts[1:] - 1])
        return torch.cat(parts)

    def _decode(
        self, count: int, steps: dict[int, Step], max_tokens: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Decode until the first `count` rows of the state have ended. Their first token has
        already been sampled. `steps` maps batch sizes to decode steps. Returns the ids and
        log-probs of each response."""
        ids = np.zeros((count, max_tokens), dtype=np.int32)
        logprobs = np.zeros((count, max_tokens), dtype=np.float32)
        lengths = np.zeros(count, dtype=np.int64)
        rows = np.arange(count)  # row of the state -> response
        writing = np.ones(count, dtype=bool)  # copy of `alive` on the CPU
        size = max(steps)
        for place in range(max_tokens):
            watchdog.beat()
            if place > 0:
                steps[size]()
            # The only transfer of a step: the CPU waits for the GPU here.
            tokens, values, ended = self.state.results[:, : len(rows)].cpu().numpy()
            ids[rows[writing], place] = tokens[writing]
            logprobs[rows[writing], place] = values[writing]
            lengths[rows[writing]] += 1
            writing = writing & (ended == 0)
            if not writing.any():
                break
            smaller = min(n for n in steps if n >= writing.sum())
            if smaller < size:
                keep = np.flatnonzero(writing)
                self.state.keep(self._tensor(keep))
                rows = rows[keep]
                writing = writing[keep]
                size = smaller
        return [(ids[row, :n].copy(), logprobs[row, :n].copy()) for row, n in enumerate(lengths)]

    def _steps(self, rows: int, sampling: SamplingParams) -> dict[int, Step]:
        """Return the decode step for each batch size that `rows` rows may use. Missing steps are
        recorded, the largest batch size first, because smaller graphs can reuse its memory pool."""
        self.state.clear()
        steps = {}
        for size in _batch_sizes(rows):
            # A step depends on all sampling settings except the maximum length of responses.
            key = (size, replace(sampling, max_tokens=0))
            if key not in self.steps:
                self.steps[key] = self._record(partial(self._step, size, sampling))
            steps[size] = self.steps[key]
        return steps

    def _record(self, step: Step) -> Step:
        """Record the step as a CUDA graph; on a CPU, return the step itself."""
        if self.device.type != "cuda":
            return step
        # Libraries allocate memory at their first call, which must not be recorded.
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            step()
        self.pool = graph.pool()
        return graph.replay

    def _step(self, size: int, sampling: SamplingParams) -> None:
        """Run one decode step: read the last token of each of the first `size` rows and sample the
        next one."""
        state = self.state
        slot = state.slot[:size]
        position = state.position[:size]
        hidden = self._hidden(
            state.token[:size],
            position,
            slot,
            query_starts=state.starts[: size + 1],
            longest_query=1,
            row_slots=slot,
            # Rows that have ended attend to a single column, because their results are ignored.
            lengths=torch.where(state.alive[:size], position + 1, 1),
        )
        self._sample(hidden, sampling)

    def _hidden(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        *,
        query_starts: torch.Tensor,
        longest_query: int,
        row_slots: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        """Run the layers on tokens `ids`, int64 [N]. Returns the residual stream [N, H] after the
        last layer. Keys and values are written to column `positions` of slot `slots`, both int64
        [N].

        `query_starts`, int32 [B + 1], has the index in `ids` at which each row begins, followed by
        N. `longest_query` is the number of tokens in the longest row. `row_slots`, int64 [B], has
        the slot of each row, and `lengths`, int64 [B], the number of columns that it attends to,
        including its new tokens.
        """
        matrices = self.matrices
        # The value of the last start is not used, because `lengths` are given.
        key_starts = (nn.functional.pad(row_slots, (0, 1)) * self.columns).int()
        x = matrices.embed(ids).float()
        turn = matrices.turn(x[:, None], positions[:, None])
        for layer, (keys, values) in zip(matrices.layers, self.buffers, strict=True):
            qkv = layer.qkv(_normed(x, layer.before)).view(len(ids), 1, -1, matrices.width)
            query, key, value = (part[:, :, 0] for part in matrices.split_heads(qkv, turn))
            keys[slots, positions] = key
            values[slots, positions] = value
            attended = varlen_attention(
                query,
                keys.flatten(0, 1),
                values.flatten(0, 1),
                query_starts=query_starts,
                key_starts=key_starts,
                longest_query=longest_query,
                longest_key=self.columns,
                lengths=lengths.int(),
                scale=1.0,  # the queries are already scaled
            )
            x = x + layer.out(attended.flatten(1))
            gate, up = layer.gate_up(_normed(x, layer.between)).chunk(2, dim=-1)
            x = x + layer.down(layer.act(gate) * up)
        return x

    def _sample(self, hidden: torch.Tensor, sampling: SamplingParams) -> None:
        """Sample the next token of each of the first n rows from their hidden states [n, H]."""
        state = self.state
        rows = len(hidden)
        logits = self.matrices.head(_normed(hidden, self.matrices.norm))
        uniforms = state.uniforms[:rows].gather(1, state.step.expand(rows, 1))[:, 0]
        ids, logprobs = sample_tokens(logits, uniforms, sampling)
        # `torch.isin` may sort, which a graph cannot record.
        ended = (ids[:, None] == self.stop_ids).any(dim=1)
        state.results[:, :rows] = torch.stack([ids.double(), logprobs.double(), ended.double()])
        state.token[:rows] = ids
        # A row that has ended stays at the column after the last token that was read.
        state.position[:rows] += state.alive[:rows]
        state.alive[:rows] &= ~ended
        state.step += 1

    def _tensor(self, numbers: Any) -> torch.Tensor:
        return torch.as_tensor(np.asarray(numbers, dtype=np.int64)).to(self.device)


def _batch_sizes(rows: int) -> list[int]:
    """Return the batch sizes of the graphs for at most `rows` rows, in descending order: a multiple
    of 256 if there are more than 256 rows, then powers of two down to 8."""
    powers = [256, 128, 64, 32, 16, 8]
    large = [-(-rows // 256) * 256] if rows > 256 else []
    return large + [size for size in powers if size < max(2 * rows, 16)]


def _normed(x: torch.Tensor, norm: Any) -> torch.Tensor:
    """Compute RMSNorm in one kernel; the model's own module launches six."""
    return nn.functional.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)

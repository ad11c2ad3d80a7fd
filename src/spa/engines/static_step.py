"""The decode step on fixed buffers: the same kernels on the same addresses for every token, recorded once as a CUDA
graph and replayed, so that a step costs what its memory traffic costs and not its thousand kernel launches."""

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from spa.engines.kv_cache import GrowingCache
from spa.models import attention

log = logging.getLogger(__name__)

WARM_UPS = 1  # runs before recording, in which libraries choose their kernels and allocate


class StaticStep:
    """Reads one token per row, `room` times at most.

    cache: filled with `columns` columns; valid: bool [B, columns]; positions: int64 [B], of the next token. On a GPU
    the step is recorded; if that fails, which is logged, it is run as it is.
    """

    def __init__(
        self,
        model: Any,
        cache: GrowingCache,
        valid: torch.Tensor,
        positions: torch.Tensor,
        room: int,
        dtype: torch.dtype,
    ) -> None:
        rows, columns = valid.shape
        self._model, self._cache, self._dtype = model, cache, dtype
        device = valid.device
        self._ids = torch.zeros((rows, 1), dtype=torch.int64, device=device)
        self._start, self._first = columns, positions[:, None].clone()
        self._cursor = torch.tensor([columns], device=device)
        self._positions = self._first.clone()
        self._initial = torch.full((rows, 1, 1, columns + room), torch.finfo(dtype).min, dtype=dtype, device=device)
        self._initial[:, 0, 0, :columns].masked_fill_(valid, 0)
        self._mask = self._initial.clone()
        cache.reserve(columns + room, self._cursor, dtype)  # which attention would turn them into at every token
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: torch.Tensor | None = None
        if device.type == "cuda":
            self._record()

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: int64 [B], the tokens just sampled. Returns logits [B, V], overwritten by the next call on a GPU."""
        self._ids.copy_(ids[:, None])
        if self._graph is not None:
            self._graph.replay()
        else:
            self._logits = self._run()
        self._cache.advance()
        assert self._logits is not None
        return self._logits

    def _run(self) -> torch.Tensor:
        self._mask.index_fill_(3, self._cursor, 0)
        with one_query_attention(self._model):
            out = self._model(
                input_ids=self._ids,
                attention_mask=self._mask,
                position_ids=self._positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        self._cursor += 1
        self._positions += 1
        return out.logits[:, -1]

    def _rewind(self) -> None:
        self._mask.copy_(self._initial)
        self._cursor.fill_(self._start)
        self._positions.copy_(self._first)

    def _record(self) -> None:
        side = _recording_stream()
        side.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    self._run()
                    self._rewind()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):  # which gives back what the graph before it has held
                self._logits = self._run()
            self._graph = graph
        except RuntimeError as error:
            log.warning("the decode step cannot be recorded as a CUDA graph (%s); it runs eagerly", error)
        torch.cuda.current_stream().wait_stream(side)
        self._rewind()


@functools.cache
def _recording_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()  # one for all recordings: libraries have buffers for each stream that they saw


@contextmanager
def one_query_attention(model: Any) -> Iterator[None]:
    """While tokens are read one by one: attention that reads keys and values once. The fused kernels copy the heads
    that several queries share, as often as they are shared, whenever there is a mask."""
    before = model.config._attn_implementation
    if before != "sdpa" or not attention.can_be_plain(model.config):
        yield
        return
    model.set_attn_implementation(attention.register())
    try:
        yield
    finally:
        model.set_attn_implementation(before)

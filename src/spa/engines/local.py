"""Batched sampling from any Hugging Face causal LM, in this process.

Models that `spa.engines.fused` supports have the fastest path:

* On CUDA, sampling uses CUDA graphs (`spa.engines.decoder`), if a trial with a few tokens passes.
* A long enough prefix of all prompts (the rules of the game) is read and stored once. A longer
  prefix that only some of the prompts share is read once.

Most models have the following optimizations:

* Keys and values are kept from turn to turn: a turn reads only new tokens.
* Equal prompts (the members of a group at their first turn) are read once.
* Rows that have finished leave the batch.

Other models are slower, or are tested first:

* Models whose layers do not all attend to the whole sequence (sliding windows, linear attention)
  use the safe path. It reads the whole conversation again at every turn, and rows stay in the batch
  until the end. The engine logs a warning when it is built.
* Vision models also read the whole conversation again, in the generation loop of transformers
  (`spa.engines.vision`).
* Architectures that are not known to work are tested with a few tokens when the engine is built.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.cache_utils import DynamicCache

from spa.config.schema import Config
from spa.engines.decoder import Decoder
from spa.engines.factory import EngineKind, EngineRequest
from spa.engines.fused import FusedModel, can_fuse
from spa.engines.kv_cache import (
    EpisodeKV,
    GrowingCache,
    Head,
    common_length,
    head_of,
    shared_beginnings,
)
from spa.engines.sampling import right_aligned, row_uniforms, sample_tokens
from spa.engines.tried import decoder_fault, reads_right, skips_check, uses_flash
from spa.engines.vision import sample_seeing
from spa.errors import ModelError
from spa.models.attention import flash_missing, has_full_attention
from spa.models.build import engine_autocast, load_actor
from spa.prompts.template import ChatTemplate
from spa.run import watchdog
from spa.types import Completion, Prompt, SamplingParams

log = logging.getLogger(__name__)

# Finished rows leave the batch once less than this share of its rows is still being sampled.
_SHRINK_AT = 0.75
# Smallest size, in bytes per row, at which the keys and values of a shared prefix are stored once.
# Applies to `FusedModel`.
_HELD_ONCE = 2**20


class LocalEngine:
    """The default engine. It shares the model with the trainer. If `load_weights` gets that model,
    it only drops the caches and refreshes the matrices of `spa.engines.fused`.

    `max_rows` is the largest batch size. `autocast` is the precision of the forward
    pass; None uses the dtype of the weights. With `graphs`, sampling uses `spa.engines.decoder`; by
    default this is tried on CUDA. Models that `spa.engines.fused` supports use its forward pass.

    Raises ModelError for an architecture whose log-probs differ between decoding with a cache and
    one forward pass.
    """

    def __init__(
        self,
        model: Any,
        template: ChatTemplate,
        *,
        max_rows: int = 1024,
        autocast: torch.dtype | None = None,
        version: int = 0,
        graphs: bool | None = None,
    ) -> None:
        self.model = model
        self.template = template
        self.version = version
        # Caches of windowed or recurrent layers cannot be split out of a batch and merged again.
        self.safe = template.images is not None or not has_full_attention(model.config)
        dtype = autocast or next(model.parameters()).dtype
        fused = not self.safe and can_fuse(model, dtype)
        # Flash attention accepts no mask over pairs of queries and keys.
        self.safe = self.safe or (not fused and uses_flash(model.config))
        self._episodes: dict[str, EpisodeKV] = {}
        self.max_rows = max_rows
        self.sampler: Any = model
        self.autocast: torch.dtype | None = None
        if (
            template.images is None
            and not skips_check(model.config)
            and not reads_right(model, partial(_Batch, self))
        ):
            raise ModelError(
                "The local engine cannot sample from the architecture "
                f"{model.config.model_type}, because decoding with a cache returns other "
                "log-probs than a full forward pass. Use another model, or "
                "actor_rollout_ref.rollout.name=vllm."
            )
        # `reads_right` has left the episodes of its trial in the cache.
        self._episodes.clear()
        self.autocast = autocast
        self.decoder: Decoder | None = None
        if fused:
            self.sampler = FusedModel(model, dtype)
        on_cuda = next(model.parameters()).device.type == "cuda"
        if graphs or (graphs is None and on_cuda and template.images is None):
            self.decoder = self._try_decoder()
        if self.safe and template.images is None:
            log.warning(
                "The model has windowed or linear attention layers, or flash attention, so the local engine "
                "computes the whole conversation again at every turn. Sampling is slower"
            )

    def _try_decoder(self) -> Decoder | None:
        """Return a decoder that has passed a trial; otherwise log a warning with the reason and
        return None."""
        device = next(self.model.parameters()).device
        if not isinstance(self.sampler, FusedModel):
            fault = "the local engine has no forward pass of its own for this model"
        elif device.type == "cuda" and (missing := flash_missing(device, self.sampler.dtype)):
            fault = missing
        else:
            decoder = Decoder(self.sampler, sorted(self.template.stop_ids), device)
            fault = decoder_fault(decoder, self.model, self.autocast)
            if not fault:
                return decoder
        log.warning("Sampling is slower, because spa cannot use CUDA graphs: %s", fault)
        return None

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """Sample one completion per prompt, in order."""
        out: list[Completion] = []
        was_training = self.model.training
        self.model.eval()
        self.sampler.eval()
        device = next(self.model.parameters()).device.type
        with (
            torch.inference_mode(),
            torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None),
            # Without this, a compiled model may be recompiled many times while the cache grows.
            torch.compiler.set_stance("force_eager"),
        ):
            for start in range(0, len(prompts), self.max_rows):
                part = prompts[start : start + self.max_rows]
                if self.template.images:
                    responses = sample_seeing(
                        self.model,
                        part,
                        sampling,
                        reader=self.template.images,
                        stop_ids=sorted(self.template.stop_ids),
                    )
                elif self.decoder is not None:
                    responses = self.decoder.generate(part, sampling)
                else:
                    responses = _Batch(self, part, sampling).run()
                out += [self._completion(ids, logprobs) for ids, logprobs in responses]
        self.model.train(was_training)
        return out

    def _completion(self, ids: np.ndarray, logprobs: np.ndarray) -> Completion:
        """Build a completion from its ids, int32 [L], and their log-probs, float32 [L]. Raises
        ModelError if a log-prob is not finite."""
        if not np.isfinite(logprobs).all():
            raise ModelError(
                "The model's log-probs are NaN or infinite, although its weights were "
                "finite when spa loaded them. Either numbers overflow in this precision, or "
                "training diverged. Set actor_rollout_ref.model.dtype to float32 or "
                "bfloat16; the last saved checkpoint is intact."
            )
        stopped = len(ids) > 0 and int(ids[-1]) in self.template.stop_ids
        return Completion(
            text=self.template.decode_response(ids),
            token_ids=ids,
            logprobs=logprobs,
            finish_reason="stop" if stopped else "length",
            version=self.version,
        )

    def load_weights(self, model: nn.Module, *, version: int) -> None:
        """Load new weights from `model`: the shared model itself, or another module with the same
        parameters. Drops all cached keys and values."""
        if model is not self.model:
            self.model.load_state_dict(model.state_dict())
        if isinstance(self.sampler, FusedModel):
            self.sampler.refresh()
        # The cached keys and values belong to the old weights.
        self._episodes.clear()
        if self.decoder is not None:
            self.decoder.slots.clear()
        self.version = version
        if torch.cuda.is_available():
            # Training leaves freed GPU memory fragmented: a long cache would not fit into the gaps.
            torch.cuda.empty_cache()

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Drop the caches of finished episodes. The memory of a store is freed once half of its
        episodes have finished."""
        if self.decoder is not None:
            self.decoder.forget(episode_ids)
        gone = [self._episodes.pop(episode_id, None) for episode_id in episode_ids]
        stores = {kv.store for kv in gone if kv is not None}
        # `shrink` keeps the rows of all episodes that are still referenced. Drop these references
        # first.
        gone.clear()
        for store in stores:
            store.shrink()

    def close(self) -> None:
        """Drop the caches."""
        self._episodes.clear()
        if self.decoder is not None:
            self.decoder.release()


class _Batch:
    """The rows of one `generate` call during sampling."""

    def __init__(
        self, engine: LocalEngine, prompts: Sequence[Prompt], sampling: SamplingParams
    ) -> None:
        self.engine = engine
        self.prompts = prompts
        self.sampling = sampling
        self.device = next(engine.model.parameters()).device
        self.dtype = engine.autocast or next(engine.model.parameters()).dtype
        self.uniforms = row_uniforms(prompts, sampling.max_tokens).to(self.device)
        self.ids: list[list[int]] = [[] for _ in prompts]
        self.logprobs: list[list[float]] = [[] for _ in prompts]
        self.rows = list(range(len(prompts)))  # batch row -> prompt

    def run(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Sample one response per prompt. Returns the ids, int32 [L], and log-probs, float32 [L],
        of each."""
        logits = self._read_prompts()
        stop_ids = torch.tensor(sorted(self.engine.template.stop_ids), device=self.device)
        alive = torch.ones(len(self.rows), dtype=torch.bool, device=self.device)
        writing = [True] * len(self.rows)  # copy of `alive` on the CPU
        for step in range(self.sampling.max_tokens):
            watchdog.beat()
            ids, logprobs = sample_tokens(logits, self.uniforms[:, step], self.sampling)
            ended = torch.isin(ids, stop_ids)
            # Transfer all results at once: unless rows leave the batch, the CPU waits for the GPU
            # only here.
            told = torch.stack([ids.double(), logprobs.double(), ended.double()]).tolist()
            for row, writes, token, value in zip(self.rows, writing, *told[:2], strict=True):
                if writes:
                    self.ids[row].append(int(token))
                    self.logprobs[row].append(value)
            alive &= ~ended
            writing = [writes and not stops for writes, stops in zip(writing, told[2], strict=True)]
            # No further token is sampled, so the last one need not be read.
            if not any(writing) or step + 1 == self.sampling.max_tokens:
                break
            # Dropping finished rows pays off once enough rows have finished.
            if not self.engine.safe and sum(writing) < len(self.rows) * _SHRINK_AT:
                # The caches of finished rows are saved for their next turn before the rows are
                # dropped.
                keep = alive.nonzero()[:, 0]
                self._leave([i for i, writes in enumerate(writing) if not writes])
                self._keep_rows(keep)
                ids = ids[keep]
                alive = alive[keep]
                writing = [True] * len(keep)
            logits = self._read_next(ids, alive)
        self._leave(range(len(self.rows)), last=True)
        return [
            (np.asarray(ids, dtype=np.int32), np.asarray(logprobs, dtype=np.float32))
            for ids, logprobs in zip(self.ids, self.logprobs, strict=True)
        ]

    def _read_prompts(self) -> torch.Tensor:
        """Read every prompt's new tokens. Returns the logits [B, V] after each prompt."""
        if self.engine.safe:
            return self._read_prompts_whole()
        cached = [self.engine._episodes.pop(p.episode_id, None) for p in self.prompts]
        cached = [
            kv if kv and kv.covers(p.token_ids) else None
            for kv, p in zip(cached, self.prompts, strict=True)
        ]
        # Equal prompts without a cache are read once and shared.
        firsts: dict[bytes, int] = {}
        source = [
            firsts.setdefault(p.token_ids.tobytes(), i) if kv is None else i
            for i, (p, kv) in enumerate(zip(self.prompts, cached, strict=True))
        ]
        unique = sorted(set(source))
        rows = [cached[i] for i in unique]
        self.cache: Any = GrowingCache(_layer_count(self.engine.model.config))
        self.cache.head = self._read_head(rows)
        self.cache.lay_out(rows)
        held = torch.tensor(
            [self.cache.shared if kv is None else len(kv.ids) for kv in rows], device=self.device
        )
        new = [
            self.prompts[i].token_ids[length:]
            for i, length in zip(unique, held.tolist(), strict=True)
        ]
        past = torch.arange(int(held.max()) - self.cache.shared, device=self.device)[None]
        # Every row begins at column 0; columns beyond the row's own length contain no token.
        valid = self.cache.shared + past < held[:, None]
        fresh = not any(rows)
        stores = {row.store for row in rows if row is not None}
        # The rows have been copied to the cache. As long as these references exist, `shrink` would
        # keep the rows in their stores as well.
        del cached, rows
        for store in stores:
            store.shrink()
        if fresh and self.cache.shared and (groups := shared_beginnings(new)):
            new, valid, held = self._read_beginnings(new, groups, valid, held)
        logits, valid = self._read_chunk(new, valid, held)
        # Equal prompts were read once; expand the batch to one row per prompt again.
        place = {prompt: row for row, prompt in enumerate(unique)}
        expand = torch.tensor([place[s] for s in source], device=self.device)
        if len(unique) < len(source):
            self.cache.select_rows(expand)
            logits = logits[expand]
            valid = valid[expand]
        self.valid = valid  # bool [B, columns]: True for columns that contain a token of the row
        self.positions = torch.tensor([len(p.token_ids) for p in self.prompts], device=self.device)
        return logits

    def _read_beginnings(
        self,
        new: list[np.ndarray],
        groups: list[tuple[int, int]],
        valid: torch.Tensor,
        held: torch.Tensor,
    ) -> tuple[list[np.ndarray], torch.Tensor, torch.Tensor]:
        """Read the common prefix of each group of rows once, for all of its rows. Returns the
        remaining tokens of `new`, and `valid` and `held` as `_read_chunk` expects them."""
        firsts = {number: ids[:tokens] for (number, tokens), ids in zip(groups, new, strict=True)}
        begun = [firsts[number] for number in range(len(firsts))]
        _, valid = self._read_chunk(begun, valid[: len(begun)], held[: len(begun)])
        rows, tokens = torch.tensor(groups, device=self.device).T
        self.cache.select_rows(rows)
        return (
            [ids[count:] for (_, count), ids in zip(groups, new, strict=True)],
            valid[rows],
            held + tokens,
        )

    def _read_head(self, cached: list[EpisodeKV | None]) -> Head:
        """Return the keys and values of the prefix that all prompts share, if storing them once
        pays off; else an empty list."""
        fused = self.engine.sampler
        if not isinstance(fused, FusedModel):
            return []
        first, *others = [prompt.token_ids for prompt in self.prompts]
        known = [kv for kv in cached if kv is not None]
        # At least one token of each prompt must be left to read, because its logits are needed.
        tokens = min([len(ids) - 1 for ids in (first, *others)] + [len(kv.ids) for kv in known])
        for ids in others:
            tokens = common_length(first[:tokens], ids)
        if not others or tokens < 1 or tokens * fused.bytes_per_token < _HELD_ONCE:
            return []
        return head_of(known[0] if known else self._read_alone(first[:tokens]), tokens)

    def _read_alone(self, ids: np.ndarray) -> EpisodeKV:
        """Build the cache of these tokens, int [c], in a separate forward pass."""
        cache = GrowingCache(_layer_count(self.engine.model.config))
        columns = torch.arange(len(ids), device=self.device)[None]
        causal = torch.ones((1, len(ids), len(ids)), dtype=torch.bool, device=self.device).tril()
        tokens = torch.from_numpy(ids.astype(np.int64)).to(self.device)
        self._forward(tokens[None], columns, causal, cache)
        row = torch.tensor([0], device=self.device)
        return cache.take_rows(row, columns, [ids], last=True)[0]

    def _read_chunk(
        self, new: list[np.ndarray], valid: torch.Tensor, held: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Read new tokens, right-aligned so that every row's last token is in the last column.

        `valid`, bool [B, past], is True for columns with a token of the row. `held`, int64 [B], is
        the number of the row's cached tokens, including the shared prefix. Returns the logits after
        each row, and `valid` with the new columns.
        """
        ids, real = (part.to(self.device) for part in right_aligned(new))
        width = ids.shape[1]
        # Positions count a row's own tokens. Positions of padding only have to be valid.
        positions = (held[:, None] + real.cumsum(1) - 1).clamp(min=0)
        causal = torch.ones((width, width), dtype=torch.bool, device=self.device).tril()
        # Padding queries attend to themselves, so that no row of the softmax is empty. Their output
        # is not used.
        own = torch.eye(width, dtype=torch.bool, device=self.device)
        inner = (causal[None] & real[:, None, :]) | own[None]
        allowed = torch.cat([valid[:, None, :].expand(-1, width, -1), inner], dim=-1)
        logits = self._forward(ids, positions, allowed, self.cache)
        return logits, torch.cat([valid, real], dim=-1)

    def _read_next(self, ids: torch.Tensor, alive: torch.Tensor) -> torch.Tensor:
        """Read the token that was just sampled in every row. Returns the logits [B, V] after it."""
        # A row whose response has ended still gets a column per step, but this column is not valid.
        self.valid = torch.cat([self.valid, alive[:, None]], dim=-1)
        if self.engine.safe:
            out = self.engine.sampler(
                input_ids=ids[:, None],
                attention_mask=self.valid.long(),
                position_ids=self.positions[:, None],
                past_key_values=self.cache,
                use_cache=True,
            )
            logits = out.logits[:, -1]
        else:
            allowed = self.valid.clone()
            # Every query attends to its own column, as in `_read_chunk`. The output of a finished
            # row is not used.
            allowed[:, -1] = True
            logits = self._forward(
                ids[:, None], self.positions[:, None], allowed[:, None, :], self.cache
            )
        self.positions = self.positions + 1
        return logits

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, allowed: torch.Tensor, cache: GrowingCache
    ) -> torch.Tensor:
        mask = torch.zeros(allowed.shape, dtype=self.dtype, device=self.device)
        mask.masked_fill_(~allowed, torch.finfo(self.dtype).min)
        out = self.engine.sampler(
            input_ids=ids,
            attention_mask=mask[:, None],
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1]

    def _read_prompts_whole(self) -> torch.Tensor:
        """Read every prompt from its start, for the safe path: left-padded, with a 2-D attention
        mask and the model's default cache. Returns the logits [B, V] after each prompt."""
        ids, self.valid = (
            part.to(self.device) for part in right_aligned([p.token_ids for p in self.prompts])
        )
        self.cache: Any = DynamicCache(config=self.engine.model.config)
        self.positions = torch.tensor([len(p.token_ids) for p in self.prompts], device=self.device)
        out = self.engine.sampler(
            input_ids=ids,
            attention_mask=self.valid.long(),
            position_ids=(self.valid.cumsum(1) - 1).clamp(min=0),
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1]

    def _leave(self, batch_rows: Sequence[int], *, last: bool = False) -> None:
        """Save the keys and values of finished rows for their next turn, if they have one."""
        batch_rows = [b for b in batch_rows if self.prompts[self.rows[b]].continued]
        if self.engine.safe or not batch_rows:
            return
        rows = torch.tensor(batch_rows, device=self.device)
        valid = self.valid[rows]
        lengths = valid.sum(1).tolist()
        # Move the columns with tokens to the front, in order, so that rows have no gaps.
        columns = (~valid).int().argsort(dim=1, stable=True)[:, : max(lengths)]
        prompts = [self.prompts[self.rows[b]] for b in batch_rows]
        written = [self.ids[self.rows[b]] for b in batch_rows]
        # The last sampled token is not in the cache, so the next turn has to read it.
        ids = [
            np.concatenate([prompt.token_ids, np.asarray(response, dtype=np.int32)])[
                : self.cache.shared + length
            ]
            for prompt, response, length in zip(prompts, written, lengths, strict=True)
        ]
        for prompt, taken in zip(
            prompts, self.cache.take_rows(rows, columns, ids, last=last), strict=True
        ):
            self.engine._episodes[prompt.episode_id] = taken

    def _keep_rows(self, keep: torch.Tensor) -> None:
        self.cache.select_rows(keep)
        self.valid = self.valid[keep]
        self.positions = self.positions[keep]
        self.uniforms = self.uniforms[keep]
        self.rows = [self.rows[i] for i in keep.tolist()]


def _layer_count(config: Any) -> int:
    return config.get_text_config(decoder=True).num_hidden_layers


def local_engine(
    cfg: Config, model: Any, template: ChatTemplate, device: torch.device
) -> LocalEngine:
    """Create the local engine for a loaded model."""
    rows = cfg.actor_rollout_ref.rollout.max_num_seqs
    return LocalEngine(model, template, max_rows=rows, autocast=engine_autocast(cfg, device))


def _make(request: EngineRequest) -> LocalEngine:
    cfg = request.cfg
    model = request.model
    template = request.template
    if model is None:
        model, own = load_actor(cfg, request.model_name, request.device)
        template = template or own
    assert template is not None
    return local_engine(cfg, model, template, request.device)


KIND = EngineKind(name="local", make=_make, trainable=True)

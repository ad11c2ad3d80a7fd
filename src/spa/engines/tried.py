"""Trials that run when the local engine is built: they check on a few tokens that it can sample
from the model."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from spa.engines.decoder import Decoder
from spa.errors import one_line
from spa.models.attention import supports_plain_attention
from spa.types import Prompt, SamplingParams

log = logging.getLogger(__name__)

# Largest accepted difference of log-probs in float32. Rounding causes about 1e-5; a wrong position
# causes much more.
SAME = 0.05
SAME_HALF = 0.2  # largest accepted difference in bfloat16
TOKENS = ((3, 14), (12, 17))  # prompt lengths of the two rows in the first turn and in the second

MakeBatch = Callable[[Sequence[Prompt], SamplingParams], Any]
"""Constructor of the batch for one call of the local engine."""


def skips_check(config: Any) -> bool:
    """Return whether to skip the trial: it is unnecessary for plain attention, and impossible with
    flash attention, which does not run in float32."""
    return supports_plain_attention(config) or uses_flash(config)


def uses_flash(config: Any) -> bool:
    """Return whether the model is configured for flash attention."""
    return "flash" in (getattr(config, "_attn_implementation", None) or "")


def reads_right(model: Any, make_batch: MakeBatch) -> bool:
    """Return whether decoding with a cache gives the same log-probs as one forward pass without a
    cache.

    The trial has two turns of two rows of unequal length. Returns False, too, if the model cannot
    be called with this cache.
    """
    fault = _fault(model, lambda: _gap(model, make_batch), SAME)
    if fault:
        log.debug("%s: %s", model.config.model_type, fault)
    return not fault


def decoder_fault(decoder: Decoder, model: Any, autocast: torch.dtype | None) -> str:
    """Try a decoder on two turns of two rows. Returns the reason not to use it: an error, or a
    difference in log-probs from one forward pass without a cache. Returns "" if the trial
    passes."""
    with torch.autocast(decoder.device.type, autocast, autocast is not None):
        fault = _fault(model, lambda: _decoder_gap(decoder, model), SAME_HALF)
    decoder.release()
    return fault


def _fault(model: Any, measure: Callable[[], float], largest: float) -> str:
    """Run a trial. `measure` returns the largest difference in log-probs, which may be at most
    `largest`. Returns an error message, or "" if the trial passes. Out-of-memory errors are
    re-raised."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
            gap = measure()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - an unknown architecture, driver or GPU may raise anything
        return one_line(error)[:300]
    finally:
        model.train(was_training)
    return "" if gap <= largest else f"log-probs differ by {gap:.2g} from those of the model"


def _gap(model: Any, make_batch: MakeBatch) -> float:
    device = next(model.parameters()).device
    words = model.get_input_embeddings().weight.shape[0]
    talks = [
        np.arange(first, first + TOKENS[-1][-1] + 1, dtype=np.int32) % words for first in (3, 7)
    ]
    rows = [torch.from_numpy(talk.astype(np.int64)).to(device)[None] for talk in talks]
    # Log-probs [T, V] of one pass without a cache, which the engine must reproduce.
    expected = [
        model(input_ids=row, use_cache=False).logits[0].float().log_softmax(-1) for row in rows
    ]
    gap = 0.0
    for lengths in TOKENS:
        prompts = [
            Prompt(
                episode_id=f"tried/{i}", messages=(), token_ids=talk[:length], prefill="", seed=0
            )
            for i, (talk, length) in enumerate(zip(talks, lengths, strict=True))
        ]
        batch = make_batch(prompts, SamplingParams(max_tokens=2))
        cached = [batch._read_prompts()]
        batch.ids = [[int(talk[length])] for talk, length in zip(talks, lengths, strict=True)]
        written = torch.tensor(batch.ids, device=device)[:, 0]
        cached.append(batch._read_next(written, torch.ones(2, dtype=torch.bool, device=device)))
        batch._leave([0, 1], last=True)
        for later, logits in enumerate(cached):
            for row, length in enumerate(lengths):
                ours = logits[row].float().log_softmax(-1)
                theirs = expected[row][length - 1 + later]
                # Two log-probs of -inf are equal, but their difference would be NaN.
                far = (ours - theirs).abs().where(ours != theirs, 0.0)
                gap = max(gap, float(far.nan_to_num(nan=torch.inf).max()))
    return gap


def _decoder_gap(decoder: Decoder, model: Any) -> float:
    words = model.get_input_embeddings().weight.shape[0]
    talks = [np.arange(first, last, dtype=np.int32) % words for first, last in ((3, 8), (7, 19))]
    gap = 0.0
    for order in ((0, 1), (1, 0)):
        prompts = [
            Prompt(episode_id=f"tried/{i}", messages=(), token_ids=talks[i], prefill="", seed=i)
            for i in order
        ]
        responses = decoder.generate(prompts, SamplingParams(max_tokens=4))
        for i, (ids, logprobs) in zip(order, responses, strict=True):
            asked = len(talks[i])
            # The three extra tokens begin the next turn's prompt.
            talks[i] = np.concatenate([talks[i], ids, talks[i][:3]])
            row = torch.from_numpy(talks[i].astype(np.int64)).to(decoder.device)[None]
            logits = model(input_ids=row, use_cache=False).logits[0, asked - 1 :].float()
            expected = logits.log_softmax(-1)[range(len(ids)), row[0, asked : asked + len(ids)]]
            gap = max(gap, float(np.abs(expected.cpu().numpy() - logprobs).max()))
    return gap

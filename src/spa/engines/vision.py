"""Sample from vision models.

The positions of image tokens, and of the tokens around them, differ between model families.
Therefore the generation loop of transformers runs the model, which reads every conversation from
the start. The tokens are sampled by spa.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from spa.engines.sampling import right_aligned, row_uniforms, sample_tokens
from spa.models.forward import policy_logits
from spa.models.vision import ImageReader
from spa.types import Prompt, SamplingParams


class _TokenSampler(LogitsProcessor):
    """Logits processor that samples a token from each row's own random stream and records its
    log-prob. It masks every other token, so that greedy decoding picks the sampled one."""

    def __init__(self, uniforms: torch.Tensor, sampling: SamplingParams, barred: int) -> None:
        self.uniforms = uniforms
        self.sampling = sampling
        self.barred = barred
        self.logprobs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        allowed = scores.clone()
        # An image token represents an image, so it must not be sampled.
        allowed[:, self.barred] = float("-inf")
        ids, _ = sample_tokens(allowed, self.uniforms[:, len(self.logprobs)], self.sampling)
        # The trainer does not exclude the image token, so these log-probs must include it, too.
        logits = policy_logits(scores.float(), self.sampling, keep=ids)
        self.logprobs.append(logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0])
        return torch.full_like(scores, float("-inf")).scatter(-1, ids[:, None], 0.0)


def sample_seeing(
    model: Any,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    *,
    reader: ImageReader,
    stop_ids: Sequence[int],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Sample one response per prompt from a vision model. Returns the ids, int32 [L], and
    log-probs, float32 [L], of each."""
    device = next(model.parameters()).device
    # Padding is masked, so any id except the image token can be used.
    pad = min(stop_ids)
    ids, real = (
        part.to(device) for part in right_aligned([prompt.token_ids for prompt in prompts], pad)
    )
    uniforms = row_uniforms(prompts, sampling.max_tokens).to(device)
    sampler = _TokenSampler(uniforms, sampling, reader.image_id)
    # `_TokenSampler` leaves a single token, which greedy decoding picks.
    settings = GenerationConfig(
        max_new_tokens=sampling.max_tokens,
        do_sample=False,
        eos_token_id=list(stop_ids),
        pad_token_id=pad,
    )
    # The model's own generation settings may contain penalties, which would change the logits.
    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        out = model.generate(
            input_ids=ids,
            attention_mask=real.long(),
            generation_config=settings,
            logits_processor=LogitsProcessorList([sampler]),
            **reader.rows([prompt.images for prompt in prompts]).inputs(ids),
        )
    finally:
        model.generation_config = own
    written = out[:, ids.shape[1] :].cpu().numpy().astype(np.int32)
    logprobs = torch.stack(sampler.logprobs, dim=1).cpu().numpy().astype(np.float32)
    responses = []
    for row, value in zip(written, logprobs, strict=True):
        # Rows that ended early are padded to the longest row.
        ends = np.flatnonzero(np.isin(row, list(stop_ids)))
        length = int(ends[0]) + 1 if len(ends) else len(row)
        responses.append((row[:length], value[:length]))
    return responses

"""Drawing tokens from logits, with draws that belong to the row and not to the batch."""

import torch

from spa.types import SamplingParams


def sample_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, sampling: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row by inverting the cumulative distribution.

    logits: [B, V]; uniforms: float64 [B] in [0, 1), one draw of each row's own stream. Returns ids int64 [B] and
    float32 [B] log-probs of those ids under the raw logits, untouched by temperature, top-k and top-p.
    """
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    if sampling.temperature == 0:
        ids = logits.argmax(-1)
    else:
        probs = torch.softmax(_restrict(logits.float() / sampling.temperature, sampling), dim=-1)
        cumulative = probs.double().cumsum(-1)
        # Scaling by the last entry keeps the draw inside the distribution when rounding leaves its sum below 1.
        targets = uniforms.to(cumulative.device)[:, None] * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    return ids, logprobs.gather(-1, ids[:, None])[:, 0]


def _restrict(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Minus infinity outside top-k and top-p (the smallest set whose mass reaches top_p)."""
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, float("-inf"))
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        outside = probs.cumsum(-1) - probs >= sampling.top_p
        logits = logits.masked_fill(torch.zeros_like(outside).scatter(-1, order, outside), float("-inf"))
    return logits

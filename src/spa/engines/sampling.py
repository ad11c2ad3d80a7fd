"""Drawing tokens from logits, with draws that belong to the row and not to the batch."""

import torch

from spa.algo.sampled import policy_logits
from spa.types import SamplingParams


def sample_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, sampling: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row by inverting the cumulative distribution.

    logits: [B, V]; uniforms: float64 [B] in [0, 1), one draw of each row's own stream. Returns ids int64 [B] and
    float32 [B] log-probs of those ids under the distribution that they were drawn from; of greedy ids, under the raw
    logits.
    """
    allowed = policy_logits(logits.float(), sampling)
    if sampling.temperature == 0:
        ids = logits.argmax(-1)
    else:
        cumulative = torch.softmax(allowed, dim=-1).double().cumsum(-1)
        # Scaling by the last entry keeps the draw inside the distribution when rounding leaves its sum below 1.
        targets = uniforms.to(cumulative.device)[:, None] * cumulative[:, -1:]
        ids = torch.searchsorted(cumulative, targets, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    return ids, torch.log_softmax(allowed, dim=-1).gather(-1, ids[:, None])[:, 0]

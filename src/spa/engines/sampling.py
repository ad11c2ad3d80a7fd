"""Sample tokens from logits. The random numbers of a row do not depend on the other rows of the
batch."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from spa.models.forward import policy_logits
from spa.types import Prompt, SamplingParams

DIRECT = 4096  # largest vocabulary whose probabilities are summed id by id
BLOCK = 256  # block size, in ids, for larger vocabularies


def row_uniforms(prompts: Sequence[Prompt], count: int) -> torch.Tensor:
    """Return float64 [B, count] random numbers in [0, 1). Each row depends only on its prompt's
    seed, not on the rest of the batch."""
    rows = [np.random.Generator(np.random.PCG64(prompt.seed)).random(count) for prompt in prompts]
    return torch.from_numpy(np.stack(rows))


def right_aligned(rows: Sequence[np.ndarray], pad: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-pad rows of token ids. Returns int64 [B, T], with each row's last token in the last
    column, and bool [B, T], False on padding."""
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pad, dtype=torch.int64)
    real = torch.zeros((len(rows), width), dtype=torch.bool)
    for row, tokens in enumerate(rows):
        ids[row, width - len(tokens) :] = torch.from_numpy(np.asarray(tokens, dtype=np.int64))
        real[row, width - len(tokens) :] = True
    return ids, real


def sample_tokens(
    logits: torch.Tensor, uniforms: torch.Tensor, sampling: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample one token per row by inverting the cumulative distribution.

    `logits` is [B, V]. `uniforms` is float64 [B] in [0, 1), with one number from each row's own
    stream. Returns ids, int64 [B], and log-probs, float32 [B]. The log-probs refer to the
    distribution from which the ids were sampled, or to the raw logits for greedy sampling.
    """
    allowed = policy_logits(logits.float(), sampling)
    if sampling.temperature == 0:
        ids = logits.argmax(-1)
        return ids, torch.log_softmax(allowed, dim=-1).gather(-1, ids[:, None])[:, 0]
    probs = torch.softmax(allowed, dim=-1)
    ids = _invert(probs, uniforms.to(probs.device))
    return ids, probs.gather(-1, ids[:, None])[:, 0].log()


def _invert(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the first id, int64 [B], at which the cumulative sum of `probs`, float32 [B, V],
    exceeds `uniforms` times the total.

    Sums are float64. For a large vocabulary, first a block is searched, then an id within that
    block.
    """
    rows, size = probs.shape
    if size <= DIRECT:
        ends = probs.double().cumsum(-1)
        # Scaling by the last entry keeps the target inside the distribution when rounding leaves
        # its sum below 1.
        return torch.searchsorted(ends, uniforms[:, None] * ends[:, -1:], right=True)[:, 0].clamp(
            max=size - 1
        )
    blocks = -(-size // BLOCK)
    split = nn.functional.pad(probs, (0, blocks * BLOCK - size)).view(rows, blocks, BLOCK)
    ends = split.sum(-1, dtype=torch.float64).cumsum(-1)
    targets = uniforms[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, targets, right=True).clamp(max=blocks - 1)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = (
        split[torch.arange(rows, device=probs.device), block[:, 0]].double().cumsum(-1) + before
    )
    # The sums over blocks and within a block may differ in the last digit. The bound keeps a target
    # at the end of its block on an id with a probability above 0.
    targets = torch.minimum(targets, inside[:, -1:] * (1 - 2**-52))
    place = torch.searchsorted(inside, targets, right=True).clamp(max=BLOCK - 1)
    return (block * BLOCK + place)[:, 0].clamp(max=size - 1)

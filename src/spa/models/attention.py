"""Attention for small models on a CPU: plain matrix products, which train up to three times as fast as the fused CPU
kernel at short lengths (measured on the built-in model: 28k against 10k tokens/s in bf16 at length 130)."""

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

NAME = "plain"
LONGEST = 400  # above this the fused kernel wins, because it never holds the matrix of scores


def plain_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [B, H, q, D], key and value [B, K, T, D] with K dividing H, additive mask [B, 1, q, T] or None (causal).

    Query heads that share a key head are stacked along the query axis, so keys are never repeated in memory.
    Returns [B, q, H, D].
    """
    rows, heads, q, width = query.shape
    if attention_mask is None and q > LONGEST:
        out = nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=key.shape[1] != heads
        )
        return out.transpose(1, 2), None
    key_heads, columns = key.shape[1], key.shape[2]
    shared = heads // key_heads
    stacked = query.reshape(rows * key_heads, shared * q, width) * scaling
    scores = torch.bmm(stacked, key.reshape(rows * key_heads, columns, width).transpose(1, 2))
    scores = scores.view(rows, key_heads, shared, q, columns)
    if attention_mask is not None:
        scores = scores + attention_mask[:, :, None].to(scores.dtype)
    elif q > 1:
        future = torch.ones((q, columns), dtype=torch.bool, device=query.device).triu(columns - q + 1)
        scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1).to(value.dtype).view(rows * key_heads, shared * q, columns)
    out = torch.bmm(weights, value.reshape(rows * key_heads, columns, width))
    return out.view(rows, heads, q, width).transpose(1, 2), None


def _no_mask_needed(*args: Any, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor | None:
    """`plain_attention` is causal by itself; padded batches get an ordinary mask."""
    if attention_mask is None:
        return None
    return eager_mask(*args, attention_mask=attention_mask, **kwargs)


def register() -> str:
    """Make the attention known to transformers; returns its name."""
    AttentionInterface.register(NAME, plain_attention)
    AttentionMaskInterface.register(NAME, _no_mask_needed)
    return NAME

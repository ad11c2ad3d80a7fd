"""Attention implementations for CPUs and GPUs.

`plain_attention` is for CPUs. It uses plain matrix products over blocks of queries. Each block
reads only the keys up to its last query. It trains two to four times as fast as PyTorch's fused CPU
kernel at up to a thousand tokens (docs/scaling.md).

`packed_attention` is for GPUs. It computes the attention of sequences without padding, in training
and in sampling.
"""

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask

NAME = "plain"
PACKED = "packed"  # for GPUs
# Architectures whose attention is only scaled dot products and a softmax.
PLAIN_MODELS = ("llama", "mistral", "qwen2", "qwen3")
BLOCK = 128  # queries per block
# Longer sequences without a mask or a cache use
# the fused kernel, which never stores the scores.
LONGEST = 1024


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
    """Compute attention by plain matrix products.

    `query` is [B, H, q, D]; `key` and `value` are [B, K, T, D], where K divides H. `attention_mask`
    is additive [B, 1, q, T]; None means causal attention.

    Query heads that share a key head are stacked along the query axis, so keys are never repeated
    in memory. Returns [B, q, H, D].
    """
    rows, heads, q, width = query.shape
    key_heads = key.shape[1]
    columns = key.shape[2]
    # `is_causal` aligns the first query with the first key, which is right only without a cache.
    if attention_mask is None and q == columns > LONGEST:
        out = nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=key_heads != heads
        )
        return out.transpose(1, 2), None
    shared = heads // key_heads
    # Cast once, because autocast would cast the inputs of each product again. Values from a cache
    # may be float32. The softmax still sums in float32.
    dtype = _product_dtype(value)
    with torch.autocast(query.device.type, enabled=False):
        query = (query * scaling).to(dtype)
        key = key.to(dtype)
        value = value.to(dtype)
        # [B K, H / K, q, D]: the query heads that share a key head are neighbours.
        stacked = query.reshape(rows * key_heads, shared, q, width)
        keys = key.reshape(rows * key_heads, columns, width).transpose(1, 2)
        values = value.reshape(rows * key_heads, columns, width)
        parts = []
        # With a mask, any query may attend to any key, so blocks would save nothing.
        block = BLOCK if attention_mask is None else q
        for start in range(0, q, block):
            some = stacked[:, :, start : start + block]
            count = some.shape[2]
            # The number of keys up to the block's last query. With a cache, `columns - q` keys come
            # before the first query.
            seen = columns - q + start + count
            scores = torch.bmm(
                some.reshape(rows * key_heads, shared * count, width), keys[:, :, :seen]
            )
            weights = _masked(scores, attention_mask, rows, count).softmax(-1)
            parts.append(
                torch.bmm(weights, values[:, :seen]).view(rows * key_heads, shared, count, width)
            )
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    return out.reshape(rows, heads, q, width).transpose(1, 2), None


def _product_dtype(x: torch.Tensor) -> torch.dtype:
    """Return the dtype for matrix products with `x`: the autocast dtype if autocast is enabled,
    else the dtype of `x`."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int = 0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the causal attention of packed sequences without a mask.

    `query` is [1, H, N, D]; `key` and `value` are [1, K, N, D]. `cu_seq_lens_q`, int32 [B + 1],
    contains the start of each sequence, followed by N. `max_length_q` is the length of the longest
    sequence. Returns [1, N, H, D]. Without `cu_seq_lens_q`, calls SDPA.
    """
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
    dtype = _product_dtype(value)
    with torch.autocast(query.device.type, enabled=False):
        out = varlen_attention(
            *(x[0].transpose(0, 1).to(dtype) for x in (query, key, value)),
            query_starts=cu_seq_lens_q,
            key_starts=cu_seq_lens_q,
            longest_query=max_length_q,
            longest_key=max_length_q,
            scale=scaling,
        )
    return out[None], None


def _masked(scores: torch.Tensor, mask: torch.Tensor | None, rows: int, count: int) -> torch.Tensor:
    """Add a mask to `scores` [rows * K, shared * count, T]. If `mask` is None, add the causal mask
    for queries that are the last `count` of T positions."""
    # A single query is at the last position, so it may attend to every key.
    if mask is None and count == 1:
        return scores
    columns = scores.shape[2]
    if mask is None:
        lowest = torch.finfo(scores.dtype).min
        later = torch.full((count, columns), lowest, dtype=scores.dtype, device=scores.device)
        return (scores.view(-1, count, columns) + later.triu(columns - count + 1)).view(
            scores.shape
        )
    return (scores.view(rows, -1, count, columns) + mask.to(scores.dtype)).view(scores.shape)


def varlen_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    query_starts: torch.Tensor,
    key_starts: torch.Tensor,
    longest_query: int,
    longest_key: int,
    scale: float,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the causal attention of sequences that are stored one after another, without padding.

    `query` is [N, H, D]; `key` and `value` are [M, K, D], where K divides H. Returns [N, H, D].

    `query_starts` and `key_starts`, int32 [B + 1], contain the start of each sequence, followed by
    the end of the last one. `longest_query` and `longest_key` are the largest numbers of queries
    and keys in a sequence. `lengths`, int32 [B], is the number of keys in use per sequence
    (inference only); by default, all keys up to the next sequence. With `lengths`, the sequences'
    keys may be stored in any order. The last query of a sequence is aligned with its last key.

    Uses a flash kernel in half precision on CUDA. In float32 or on a CPU, which only tests use, it
    processes one sequence after another.
    """
    if query.device.type == "cpu" or query.dtype == torch.float32:
        return _attention_by_sequence(query, key, value, query_starts, key_starts, scale, lengths)
    # `torch.nn.attention.varlen` calls this operator. Its Python function cannot pass `lengths` in
    # PyTorch 2.11, unlike in 2.13.
    return torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        query_starts,
        key_starts,
        longest_query,
        longest_key,
        dropout_p=0.0,
        is_causal=True,
        return_debug_mask=False,
        scale=scale,
        seqused_k=lengths,
    )[0]


def _attention_by_sequence(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_starts: torch.Tensor,
    key_starts: torch.Tensor,
    scale: float,
    lengths: torch.Tensor | None,
) -> torch.Tensor:
    counts = query_starts.diff().tolist()
    used = (key_starts.diff() if lengths is None else lengths).tolist()
    parts = []
    for queries, first, count in zip(query.split(counts), key_starts, used, strict=False):
        keys, values = (x[first : first + count].transpose(0, 1) for x in (key, value))
        seen = queries.new_ones(len(queries), count, dtype=torch.bool).tril(count - len(queries))
        out = nn.functional.scaled_dot_product_attention(
            queries.transpose(0, 1), keys, values, attn_mask=seen, scale=scale, enable_gqa=True
        )
        parts.append(out.transpose(0, 1))
    return torch.cat(parts)


def flash_missing(device: torch.device, dtype: torch.dtype) -> str:
    """Return why `varlen_attention` cannot run on this device in this dtype; "" if it can."""
    if device.type != "cuda":
        return "there is no CUDA device"
    if dtype not in (torch.bfloat16, torch.float16):
        return "the kernel needs bfloat16"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU is older than Ampere (compute capability 8.0)"
    if not torch.backends.cuda.is_flash_attention_available():
        return "this build of PyTorch has no flash attention"
    return ""


def has_full_attention(config: Any) -> bool:
    """Return whether every layer attends to the whole sequence: no sliding windows, no linear
    attention."""
    text = config.get_text_config(decoder=True)
    kinds = getattr(text, "layer_types", None)
    if kinds is not None:
        return all(kind == "full_attention" for kind in kinds)
    # GPT-Neo lists the kinds of its layers in `attention_types`. Windowed layers are "local".
    if getattr(text, "attention_types", None) is not None:
        return all(kind == "global" for kinds, _ in text.attention_types for kind in kinds)
    return getattr(text, "sliding_window", None) is None


def supports_plain_attention(config: Any) -> bool:
    """Return whether `plain_attention` can compute the attention of this architecture."""
    return config.model_type in PLAIN_MODELS and has_full_attention(config)


def _no_mask_needed(
    *args: Any, attention_mask: torch.Tensor | None = None, **kwargs: Any
) -> torch.Tensor | None:
    """Return the mask for `plain_attention`. For unpadded batches, return None, so that
    `plain_attention` applies a causal mask."""
    if attention_mask is None:
        return None
    return eager_mask(*args, attention_mask=attention_mask, **kwargs)


def register(name: str = NAME) -> str:
    """Register `plain_attention` (NAME) or `packed_attention` (PACKED) with transformers. Returns
    the name."""
    packed = name == PACKED
    AttentionInterface.register(name, packed_attention if packed else plain_attention)
    AttentionMaskInterface.register(name, sdpa_mask if packed else _no_mask_needed)
    return name

"""Log-probabilities, entropies and values of whole sequences, without ever building [B, T, V]."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from spa.models.load import Critic

LOGITS_CHUNK = 2**24  # elements of one [n, V] block of logits: 64 MiB in fp32


def token_logprobs(
    model: Any, input_ids: torch.Tensor, mask: torch.Tensor, *, with_entropy: bool = False, entropy_grad: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob and entropy (in nats) of the masked predictions under the raw logits.

    input_ids: int64 [B, T], right-padded; mask: bool [B, A], True where the prediction of the next token is wanted.
    Returns two float32 [B, A], zero where the mask is False; entropies are zero unless asked for, and carry a gradient
    only with `entropy_grad`.
    """
    body = model.base_model if not hasattr(model, "get_base_model") else model.get_base_model().base_model
    hidden = body(input_ids=input_ids, use_cache=False).last_hidden_state
    picked = hidden[:, :-1][mask]  # [N, H]
    targets = input_ids[:, 1:][mask]  # [N]
    head = model.get_output_embeddings()
    softcap = getattr(model.config.get_text_config(decoder=True), "final_logit_softcapping", None)
    entropy = (with_entropy, entropy_grad)
    rows = max(1, LOGITS_CHUNK // head.weight.shape[0])
    parts = [
        checkpoint(_chunk, picked[i : i + rows], targets[i : i + rows], head, softcap, entropy, use_reentrant=False)
        if torch.is_grad_enabled() and len(picked) > rows
        else _chunk(picked[i : i + rows], targets[i : i + rows], head, softcap, entropy)
        for i in range(0, len(picked), rows)
    ]
    logprobs = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    entropies = torch.zeros_like(logprobs)
    if parts:
        logprobs = logprobs.masked_scatter(mask, torch.cat([p[0] for p in parts]))
        entropies = entropies.masked_scatter(mask, torch.cat([p[1] for p in parts]))
    return logprobs, entropies


def _chunk(
    hidden: torch.Tensor, targets: torch.Tensor, head: Any, softcap: float | None, entropy: tuple[bool, bool]
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden).float()
    if softcap:
        logits = torch.tanh(logits / softcap) * softcap
    normalizer = logits.logsumexp(-1)
    logprobs = logits.gather(-1, targets[:, None])[:, 0] - normalizer
    with_entropy, entropy_grad = entropy
    if not with_entropy:
        return logprobs, torch.zeros_like(logprobs)
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_grad):
        return logprobs, normalizer - (logits.softmax(-1) * logits).sum(-1)


def token_values(critic: Critic, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """float32 [B, A]: the value of the state before each masked prediction; zero where the mask is False."""
    return critic(input_ids)[:, :-1] * mask


def micro_batches(lengths: torch.Tensor, *, rows: int | None, max_tokens: int | None) -> Iterator[torch.Tensor]:
    """Row indices, int64, of consecutive micro-batches: `rows` rows each, or as many as fit into `max_tokens` tokens of
    padded length. Rows are sorted by length, so that little is padded; the order is the same on every run."""
    order = torch.argsort(lengths, stable=True, descending=True)
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        count = max(1, max_tokens // longest) if max_tokens else (rows or len(order))
        yield order[start : start + count]
        start += count

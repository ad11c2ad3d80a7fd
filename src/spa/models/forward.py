"""Forward passes over whole sequences: log-probabilities, entropies and values of tokens.

The logits [B, T, V] are never stored as a whole. The module also defines the distribution from
which tokens are sampled, and PPO's critic: the body of a causal LM with one value per token.
"""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from spa.models.attention import PACKED, has_full_attention
from spa.models.lora import save_model
from spa.models.vision import RowImages, sees
from spa.types import SamplingParams

VALUE_HEAD = "value_head.safetensors"


class Critic(nn.Module):
    """Value head on the body of a causal LM. The head is initialized with zeros, so all initial
    values are zero."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.value_head = nn.Linear(body.config.get_text_config(decoder=True).hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        self.value_head.to(next(body.parameters()).dtype)

    @property
    def config(self) -> Any:
        """The body's configuration."""
        return self.body.config

    def forward(self, input_ids: torch.Tensor, images: RowImages | None = None) -> torch.Tensor:
        """Return values, float32 [B, T], for `input_ids`, int64 [B, T]: the value of the state
        after each token has been read."""
        seen = {} if images is None else images.inputs(input_ids)
        hidden = self.body(input_ids=input_ids, use_cache=False, **seen).last_hidden_state
        return self.value_head(hidden).squeeze(-1).float()

    def save_pretrained(self, folder: Path) -> None:
        """Save the body as a Hugging Face folder that also contains the head."""
        save_model(self.body, Path(folder))
        save_file(
            {k: v.contiguous() for k, v in self.value_head.state_dict().items()},
            Path(folder) / VALUE_HEAD,
        )

    def load_body(self, folder: Path) -> None:
        """Load the body of a saved critic. Raises RuntimeError if its weights do not fit."""
        state: dict[str, torch.Tensor] = {}
        for path in folder.glob("*.safetensors"):
            if path.name != VALUE_HEAD:
                state |= load_file(path)
        self.body.load_state_dict(state)

    def load_head(self, folder: Path) -> None:
        """Load the head of a saved critic, if the folder has one."""
        if (folder / VALUE_HEAD).is_file():
            self.value_head.load_state_dict(load_file(folder / VALUE_HEAD))


log = logging.getLogger(__name__)

PLAIN = SamplingParams()
# Largest relative difference at which two forward passes count as equal. Rounding gives 1e-6 in
# float32 and a few 1e-3 in bfloat16; rows that wrongly attend to each other give 0.1 or more.
TOLERANCE = 1e-2
# A shared prefix must save at least this many tokens to justify a second pass through the layers.
WORTH_SHARING = 256
LOGITS_CHUNK = 2**24  # elements of one [n, V] block of logits: 64 MiB in fp32
# Blocks are larger on a GPU, because the backward pass of each block reads and writes the gradient
# of the whole output matrix.
GPU_LOGITS_CHUNK = 2**26


def token_logprobs(
    model: Any,
    input_ids: torch.Tensor,
    mask: torch.Tensor,
    *,
    images: RowImages | None = None,
    with_entropy: bool = False,
    entropy_grad: bool = False,
    sampling: SamplingParams = PLAIN,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probs and entropies (in nats) of masked predictions.

    They refer to the distribution that `sampling` samples from, by default the softmax of the raw
    logits. Top-k and top-p are applied to the logits of this model, but never exclude the token in
    `input_ids`.

    `input_ids` is int64 [B, T], right-padded. `mask` is bool [B, A] with A = T - 1: entry t selects
    the prediction of token t + 1. `images` are the images of the rows, for a vision model. Returns
    two float32 tensors [B, A], zero where the mask is False. Entropies are zero without
    `with_entropy`, and have a gradient only with `entropy_grad`.
    """
    picked = _read(
        layers_of(model),
        input_ids,
        mask,
        packed=packs_rows(model),
        shared=shares_prefix(model),
        images=images,
    )  # [N, H]
    targets = input_ids[:, 1:][mask]  # [N]
    rows = chunk_rows(model)
    how = ((with_entropy, entropy_grad), sampling)
    # Each chunk is recomputed in the backward pass, so that only one is in memory at a time.
    parts = [
        checkpoint(
            _chunk, model, picked[i : i + rows], targets[i : i + rows], *how, use_reentrant=False
        )
        if torch.is_grad_enabled() and len(picked) > rows
        else _chunk(model, picked[i : i + rows], targets[i : i + rows], *how)
        for i in range(0, len(picked), rows)
    ]
    logprobs = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    entropies = torch.zeros_like(logprobs)
    if parts:
        logprobs = logprobs.masked_scatter(mask, torch.cat([p[0] for p in parts]))
        entropies = entropies.masked_scatter(mask, torch.cat([p[1] for p in parts]))
    else:
        logprobs = (
            logprobs + picked.sum()
        )  # adds 0, so that a loss without tokens has a gradient of 0
    return logprobs, entropies


def layers_of(model: Any) -> Any:
    """Return the layers below the head: of a policy, with or without adapters, or of a critic."""
    if isinstance(model, Critic):
        return model.body
    # peft's wrapper contains the causal language model, which contains the layers.
    return (
        model.base_model
        if not hasattr(model, "get_base_model")
        else model.get_base_model().base_model
    )


def chunk_rows(model: Any) -> int:
    """Return the number of positions per chunk of logits. Logits are computed in chunks, because
    [B, T, V] would be the largest tensor in memory."""
    weight = model.get_output_embeddings().weight
    return max(1, (GPU_LOGITS_CHUNK if weight.is_cuda else LOGITS_CHUNK) // weight.shape[0])


def raw_logits(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Return the logits, float32 [n, V], of hidden states [n, H]."""
    # The softmax over the vocabulary needs float32: in bfloat16, log-probs are too imprecise.
    logits = model.get_output_embeddings()(hidden).float()
    # Gemma 2 bounds its logits in a step after the head, which a call of the head alone leaves out.
    softcap = getattr(model.config.get_text_config(decoder=True), "final_logit_softcapping", None)
    return torch.tanh(logits / softcap) * softcap if softcap else logits


def policy_logits(
    logits: torch.Tensor, sampling: SamplingParams, keep: torch.Tensor | None = None
) -> torch.Tensor:
    """Return logits `[N, V]` whose softmax is the distribution that `sampling` samples from.

    Logits are divided by the temperature, then set to minus infinity outside the top-k set, and
    then outside the smallest set whose mass reaches top_p. `keep` int64 `[N]` is one token per row
    that is never excluded, so that a token sampled with other weights or in another precision has a
    finite log-prob. For greedy sampling (temperature 0), which has no such distribution, the logits
    are returned unchanged.
    """
    if sampling.temperature == 0:
        return logits
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    kept = logits
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        # All ties with the k-th logit stay, since `topk` lists an arbitrary one of them.
        kept = logits.masked_fill(logits < smallest, float("-inf"))
    if sampling.top_p < 1:
        ordered, order = kept.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        # Compare the mass before each token with top_p, so that the token that crosses top_p is
        # kept.
        outside = probs.cumsum(-1) - probs >= sampling.top_p
        kept = kept.masked_fill(
            torch.zeros_like(outside).scatter(-1, order, outside), float("-inf")
        )
    # With changed weights, top_k or top_p may exclude a token that was sampled. Keep it, so that
    # its log-prob is finite.
    if keep is not None and kept is not logits:
        kept = kept.scatter(-1, keep[:, None], logits.gather(-1, keep[:, None]))
    return kept


def _chunk(
    model: Any,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    entropy: tuple[bool, bool],
    sampling: SamplingParams,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = policy_logits(raw_logits(model, hidden), sampling, keep=targets)
    normalizer = logits.logsumexp(-1)
    logprobs = logits.gather(-1, targets[:, None])[:, 0] - normalizer
    with_entropy, entropy_grad = entropy
    if not with_entropy:
        return logprobs, torch.zeros_like(logprobs)
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_grad):
        probs = logits.softmax(-1)
        if sampling.top_k > 0 or sampling.top_p < 1:
            # Excluded tokens have probability 0 and logit -inf, and 0 times infinity would be NaN.
            logits = logits.masked_fill(logits == -torch.inf, 0.0)
        # H = log Z - sum p logit.
        return logprobs, normalizer - (probs * logits).sum(-1)


def token_values(
    critic: Critic, input_ids: torch.Tensor, mask: torch.Tensor, *, images: RowImages | None = None
) -> torch.Tensor:
    """Return the value of the state before each masked prediction: float32 [B, A], zero where the
    mask is False. Arguments as in `token_logprobs`."""
    packed = packs_rows(critic)
    shared = shares_prefix(critic)
    if not packed and not shared:
        return critic(input_ids, images=images)[:, :-1] * mask
    picked = (
        critic.value_head(_read(critic.body, input_ids, mask, packed=packed, shared=shared))
        .squeeze(-1)
        .float()
    )
    return torch.zeros(mask.shape, dtype=torch.float32, device=mask.device).masked_scatter(
        mask, picked
    )


def _read(
    body: Any,
    input_ids: torch.Tensor,
    mask: torch.Tensor,
    *,
    packed: bool,
    shared: bool = False,
    images: RowImages | None = None,
) -> torch.Tensor:
    """Return the hidden states [N, H] that predict the masked tokens, row by row."""
    if not packed:
        prefix = common_prefix(input_ids, mask) if shared else 0
        # The prefix is read once, so every row except one saves its tokens.
        if prefix * (len(input_ids) - 1) >= WORTH_SHARING:
            return _read_after(body, input_ids, prefix)[:, :-1][mask[:, prefix:]]
        seen = {} if images is None else images.inputs(input_ids)
        return _read_whole(body, input_ids, **seen)[:, :-1][mask]
    # Read each row only up to the last prediction in its mask.
    wanted = nn.functional.pad(mask, (0, 1))
    columns = torch.arange(input_ids.shape[1], device=mask.device)
    read = columns[None] <= (wanted * columns).amax(1, keepdim=True)
    read &= mask.any(1, keepdim=True)
    if not read.any():
        read[0, 0] = True  # a model needs at least one token
    # Positions, [1, N]. A position of 0 marks the start of a row.
    positions = columns.expand_as(read)[read][None]
    packing = _packing(read.sum(1)) if body.config._attn_implementation == PACKED else {}
    hidden = body(
        input_ids=input_ids[read][None], position_ids=positions, use_cache=False, **packing
    ).last_hidden_state[0]
    return hidden[wanted[read]]


def _packing(lengths: torch.Tensor) -> dict[str, Any]:
    """Return the arguments of `packed_attention` for sequences of these lengths, int64 [B]."""
    starts = nn.functional.pad(lengths[lengths > 0].cumsum(0), (1, 0)).int()
    return {
        "cu_seq_lens_q": starts,
        "max_length_q": int(lengths.max()),
        # transformers uses a mask of this shape unchanged, instead of building one of N x N.
        "attention_mask": starts.new_ones((1, 1, 1, 1), dtype=torch.bool),
    }


def common_prefix(input_ids: torch.Tensor, mask: torch.Tensor) -> int:
    """Return the number of leading tokens that are equal in all rows and not in `mask`. In agent
    data, these are the rules of the game."""
    differs = (input_ids[:, :-1] != input_ids[:1, :-1]) | mask  # [B, A]
    columns = differs.any(0).nonzero()
    return int(columns[0]) if len(columns) else 0


def _read_after(body: Any, input_ids: torch.Tensor, prefix: int) -> torch.Tensor:
    """Return hidden states [B, T - prefix, H] after a common prefix. The prefix is read once, and
    receives the gradients of all rows."""
    cache: Any = DynamicCache()
    body(input_ids=input_ids[:1, :prefix], past_key_values=cache, use_cache=True)
    # Expand without copying: all rows share the same keys and values, which accumulate the
    # gradients of all rows.
    for layer in cache.layers:
        layer.keys, layer.values = (
            part.expand(len(input_ids), -1, -1, -1) for part in (layer.keys, layer.values)
        )
    positions = torch.arange(prefix, input_ids.shape[1], device=input_ids.device)[None]
    rest = body(
        input_ids=input_ids[:, prefix:],
        past_key_values=cache,
        position_ids=positions,
        use_cache=True,
    )
    return rest.last_hidden_state


def _read_whole(body: Any, input_ids: torch.Tensor, **seen: Any) -> torch.Tensor:
    """Return the hidden states [B, T, H] of right-padded rows."""
    return body(input_ids=input_ids, use_cache=False, **seen).last_hidden_state


def _trial_rows(body: Any) -> torch.Tensor:
    """Return int64 [2, 7]: two rows of different tokens, for trial forward passes."""
    vocabulary = body.get_input_embeddings().weight.shape[0]
    return (torch.arange(14, device=body.device).view(2, 7) * 7 + 1) % vocabulary


def _gap(model: Any, usual: Callable[[], torch.Tensor], other: Callable[[], torch.Tensor]) -> float:
    """Return the largest difference between the results of two forward passes, relative to the
    largest value. The model's training mode is restored."""
    was_training = model.training
    # `eval` turns off dropout, which would differ between the two passes.
    model.eval()
    with torch.no_grad():
        expected = usual().float()
        packed = other().float()
    model.train(was_training)
    return float((expected - packed).abs().max() / expected.abs().max().clamp(min=1e-30))


def share_prefix(model: Any) -> bool:
    """Let the rows of a batch share a common prefix, so that it is read once instead of once per
    row.

    This is enabled only if a trial shows that the model's outputs do not change. Vision models, and
    models with sliding windows or linear attention, do not share prefixes. Returns whether sharing
    is enabled.
    """
    body = layers_of(model)
    same = False
    if not sees(body.config) and has_full_attention(body.config):
        ids = _trial_rows(body)
        ids[1, :4] = ids[0, :4]
        same = (
            _gap(model, lambda: _read_whole(body, ids)[:, 4:], lambda: _read_after(body, ids, 4))
            <= TOLERANCE
        )
    setattr(model, "shares_prefix", same)  # noqa: B010 - a plain flag, not one of the module's tensors
    return same


def shares_prefix(model: Any) -> bool:
    """Return whether `share_prefix` has enabled prefix sharing for the model."""
    return getattr(model, "shares_prefix", False)


def pack_rows(model: Any) -> bool:
    """Let the rows of a batch be packed into one sequence without padding.

    There is no attention mask and no cache: a position id of 0 marks the start of a row. Packing is
    enabled only if a trial shows that packed rows do not attend to each other. Vision models use
    padded rows, because their positions depend on the images. Returns whether packing is enabled.
    """
    body = layers_of(model)
    if sees(body.config):
        return False
    ids = _trial_rows(body)
    # The masks differ, so that the trial packs rows of unequal length.
    mask = torch.tensor([[True] * 6, [True] * 3 + [False] * 3], device=body.device)
    gap = _gap(model, *(partial(_read, body, ids, mask, packed=flag) for flag in (False, True)))
    packs = gap <= TOLERANCE
    setattr(model, "packs_rows", packs)  # noqa: B010 - a plain flag, not one of the module's tensors
    if not packs:
        log.warning(
            "spa pads examples instead of packing them, because attention of this model "
            "crosses packed examples (outputs differ by %.2g)",
            gap,
        )
    return packs


def packs_rows(model: Any) -> bool:
    """Return whether `pack_rows` has enabled packing for the model."""
    return getattr(model, "packs_rows", False)


def switch_off_dropout(model: nn.Module) -> None:
    """Set every dropout probability in the modules to 0 permanently; the model's configuration does
    not change.

    Unlike `eval`, which also turns off gradient checkpointing, this keeps the model in training
    mode.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            # Attention dropout and layerdrop are plain float attributes, not modules.
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def micro_batches(
    lengths: torch.Tensor, *, rows: int | None, max_tokens: int | None, packed: bool = False
) -> Iterator[torch.Tensor]:
    """Yield the row indices, int64, of each micro-batch.

    Without `max_tokens`, a micro-batch has `rows` rows (None: all). Otherwise `rows` is ignored,
    and it has the most rows that fit into `max_tokens` tokens, but at least one. Padding counts
    towards `max_tokens` unless rows are `packed`. Rows are sorted by length to reduce padding; the
    order is deterministic.
    """
    order = torch.argsort(lengths, stable=True, descending=True)
    ends = lengths[order].cumsum(0)
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        if max_tokens is None:
            count = rows or len(order)
        # A packed row costs its own length in tokens, a padded row the length of the longest row.
        elif packed:
            before = int(ends[start]) - longest
            count = max(1, int((ends <= before + max_tokens).sum()) - start)
        else:
            count = max(1, max_tokens // longest)
        yield order[start : start + count]
        start += count

"""Forward pass of Llama-like models for sampling. It computes the logits of the last position only,
in few operations.

A decoding step reads one token per row, so its main costs are reading the weights and Python
overhead. Therefore, projections of the same input (query, key and value; gate and up) are fused
into one matrix. On a CPU, this matrix has oneDNN's packed layout.

Attention is two plain matrix products over the cache. PyTorch's fused attention kernel for CPUs is
optimized for long queries, and takes ten times as long in bfloat16. On a GPU, transformers would
first copy keys and values for every query head.

The residual stream, norms and RoPE are float32, as under autocast, so that sampler and trainer
agree up to rounding.
"""

import re
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from spa.engines.kv_cache import GrowingCache
from spa.models.attention import has_full_attention
from spa.models.lora import has_adapters, merged_weight

MODELS = ("llama", "mistral", "qwen2")
COPY_BYTES = 2**30  # largest size of weights of which a second copy in their own dtype is cheap
PREFILL_SCORES = 2**24  # elements of one block of attention scores: 64 MiB in float32
DECODED_ROWS = 16  # batch size for which the matrix layout is optimized; any other size works


def can_fuse(model: Any, dtype: torch.dtype) -> bool:
    """Return whether `FusedModel` supports the model, and whether its copy of the matrices is worth
    the memory. The copy is worth it if `dtype` differs from the dtype of the weights, or if they
    have at most `COPY_BYTES`."""
    config = getattr(model, "config", None)
    if config is None or config.model_type not in MODELS or not has_full_attention(config):
        return False
    # Subclasses, such as quantized layers, do more than multiply by their weight.
    if any(
        type(module) is not nn.Linear for module in model.modules() if isinstance(module, nn.Linear)
    ):
        return False
    # `FusedModel` computes only the matrices in `known`, and would ignore any other. Adapters are
    # merged into them on a GPU. On a CPU, computing adapters separately costs less than merging
    # them.
    linear = {
        re.split(r"\.(?:base_layer|lora_)", name)[0].rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    }
    known = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}
    devices = {parameter.device.type for parameter in model.parameters()}
    stored = next(model.parameters()).dtype
    size = sum(parameter.nbytes for parameter in model.parameters())
    return (
        devices in ({"cpu"}, {"cuda"})
        and not (has_adapters(model) and devices == {"cpu"})
        and linear == known
        and (dtype != stored or size <= COPY_BYTES)
    )


class Matrix:
    """Linear layers with the same input, fused into one matrix in `dtype`. On a CPU, the matrix has
    oneDNN's packed layout if that is available."""

    def __init__(self, layers: list[Any], dtype: torch.dtype) -> None:
        self.layers = layers  # the trainer's layers
        self.dtype = dtype
        self.packed = (
            layers[0].weight.device.type == "cpu"
            and torch.backends.mkldnn.is_available()
            and dtype in _packable()
        )
        self.weight: Any = None
        self.bias: Any = None
        self.fill()

    @torch.no_grad()
    def fill(self) -> None:
        """Copy the layers' weights. Call this after every update.

        Except in oneDNN's layout, the weights are copied in place, because recorded CUDA graphs
        read this memory.
        """
        weight = torch.cat([merged_weight(layer) for layer in self.layers]).to(self.dtype)
        biases = [layer.bias for layer in self.layers if layer.bias is not None]
        bias = torch.cat(biases).to(self.dtype) if biases else None
        if self.packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, DECODED_ROWS)
        if self.packed or self.weight is None:
            self.weight = weight
            self.bias = bias
            return
        self.weight.copy_(weight)
        if bias is not None:
            self.bias.copy_(bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layers to `x` [n, in] in the precision of the matrix. Returns [n, out]."""
        x = x.to(self.dtype)
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return nn.functional.linear(x, self.weight, self.bias)


def _packable() -> tuple[torch.dtype, ...]:
    has = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None) is not None
    bfloat16 = has and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return (torch.float32, torch.bfloat16) if bfloat16 else (torch.float32,) if has else ()


class Layer:
    """Fused matrices of one layer. Its norms are the trainer's own modules."""

    def __init__(self, source: Any, dtype: torch.dtype) -> None:
        attention = source.self_attn
        mlp = source.mlp
        self.qkv = Matrix([attention.q_proj, attention.k_proj, attention.v_proj], dtype)
        self.out = Matrix([attention.o_proj], dtype)
        self.gate_up = Matrix([mlp.gate_proj, mlp.up_proj], dtype)
        self.down = Matrix([mlp.down_proj], dtype)
        self.act = mlp.act_fn
        self.before = source.input_layernorm
        self.between = source.post_attention_layernorm


class FusedModel:
    """Copy of a Llama-like model's matrices. It is called like the model itself, with a cache and
    an additive mask."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        config = model.config
        self.heads = config.num_attention_heads
        self.key_heads = config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.scale = self.width**-0.5
        self.dtype = dtype
        self.bytes_per_token = (
            2 * config.num_hidden_layers * self.key_heads * self.width * dtype.itemsize
        )
        """Bytes of keys and values per token of a row."""
        body = model.base_model
        self.embed = body.embed_tokens
        self.rotary = body.rotary_emb
        self.norm = body.norm
        self.layers = [Layer(layer, dtype) for layer in body.layers]
        self.head = Matrix([model.get_output_embeddings()], dtype)

    def refresh(self) -> None:
        """Copy the matrices of the model again. Norms and embeddings need no copy, because they are
        shared with the trainer."""
        for layer in self.layers:
            for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down):
                matrix.fill()
        self.head.fill()

    def eval(self) -> "FusedModel":
        """Return self, because evaluation and training mode do not differ here."""
        return self

    def __call__(
        self,
        *,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past_key_values: GrowingCache,
        **unused: Any,
    ) -> SimpleNamespace:
        """Run the model on `input_ids` at `position_ids`, both int64 [B, q].

        `attention_mask` is additive, [B, 1, q, T], over the columns of the cache followed by the q
        new ones. Returns an object whose `logits`, [B, 1, V], belong to the last position.
        """
        with torch.autocast(input_ids.device.type, enabled=False):
            return SimpleNamespace(
                logits=self._logits(input_ids, attention_mask, position_ids, past_key_values)
            )

    def _logits(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: GrowingCache
    ) -> torch.Tensor:
        rows, q = ids.shape
        # The residual stream, the norms and RoPE are float32. Matrix products, attention and the
        # activation function are in `dtype`.
        x = self.embed(ids).float()
        turn = self.turn(x, positions)
        x = x.view(rows * q, -1)
        for index, layer in enumerate(self.layers):
            queries, keys, values = self.split_heads(
                layer.qkv(layer.before(x)).view(rows, q, -1, self.width), turn
            )
            keys, values = cache.append(index, keys, values)
            # The buffers may have spare columns without tokens, so extend the mask to exclude them.
            if keys.shape[2] > mask.shape[-1]:
                mask = nn.functional.pad(
                    mask, (0, keys.shape[2] - mask.shape[-1]), value=torch.finfo(self.dtype).min
                )
            head = cache.head[index] if cache.head else None
            x = x + layer.out(self._attend(queries, keys, values, mask, head))
            gate, up = layer.gate_up(layer.between(x)).chunk(2, dim=-1)
            x = x + layer.down(layer.act(gate) * up)
        # Sampling needs the logits of the last position only, so the head reads no other position.
        last = x.view(rows, q, -1)[:, -1]
        return self.head(self.norm(last))[:, None]

    def turn(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the RoPE factors of queries and keys at `positions`, int64 [B, q], as two tensors
        [B, q, 1, D]."""
        cos, sin = self.rotary(x, positions)
        half = self.width // 2
        # `cos` multiplies x, and `sin` multiplies x with its halves swapped; their sum is RoPE.
        sin = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        return cos.unsqueeze(2), sin.unsqueeze(2)

    def split_heads(
        self, qkv: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split [B, q, H + 2 K, D] into queries [B, H, q, D], scaled and with RoPE applied, keys
        [B, K, q, D] with RoPE applied, and values [B, K, q, D]."""
        turned = self.heads + self.key_heads
        # RoPE is applied in float32, as in the trainer under autocast.
        both = qkv[:, :, :turned].float()
        both = torch.addcmul(both * turn[0], both.roll(self.width // 2, -1), turn[1])
        queries = (both[:, :, : self.heads] * self.scale).to(self.dtype)
        keys = both[:, :, self.heads :].to(self.dtype)
        return queries.transpose(1, 2), keys.transpose(1, 2), qkv[:, :, turned:].transpose(1, 2)

    def _attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor,
        head: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """Compute attention for queries [B, H, q, D], keys and values [B, K, T, D], and a mask [B,
        1, q, T]. Returns [B * q, H * D].

        Queries that share a key head are stacked, so that every key is read once. Rows are
        processed in blocks. `head` has the keys and values [K, c, D] of a prefix that all rows
        share.
        """
        rows, _, q, _ = queries.shape
        shared = self.heads // self.key_heads
        columns = keys.shape[2]
        early = 0 if head is None else head[0].shape[1]
        # The largest number of rows whose scores [rows, H, q, T] have at most PREFILL_SCORES
        # elements.
        block = max(1, PREFILL_SCORES // (self.heads * q * (early + columns)))
        parts = []
        for i in range(0, rows, block):
            some = slice(i, i + block)
            stacked = queries[some].reshape(-1, shared * q, self.width)
            scores = torch.bmm(stacked, keys[some].flatten(0, 1).transpose(1, 2)).view(
                -1, self.heads, q, columns
            )
            scores = scores.add_(mask[some])
            # Compute one softmax over the shared columns and the row's own columns.
            if head is not None:
                scores = torch.cat(
                    [self._times_shared(queries[some], head[0].transpose(1, 2)), scores], dim=-1
                )
            weights = scores.softmax(-1)
            own = weights[..., early:].reshape(-1, shared * q, columns)
            out = torch.bmm(own, values[some].flatten(0, 1)).view(-1, self.heads, q, self.width)
            if head is not None:
                out += self._times_shared(weights[..., :early], head[1])
            parts.append(out.transpose(1, 2))
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(
            rows * q, self.heads * self.width
        )

    def _times_shared(self, x: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
        """Multiply `x` [B, H, q, n] by `shared` [K, n, m], which is the same for all rows. Returns
        [B, H, q, m]."""
        rows, heads, q, n = x.shape
        # Compute all rows in one product per key head, with `x` as [K, B * H / K * q, n].
        of_head = (
            x.reshape(rows, self.key_heads, -1, n).transpose(0, 1).reshape(self.key_heads, -1, n)
        )
        out = torch.bmm(of_head, shared).view(self.key_heads, rows, heads // self.key_heads, q, -1)
        return out.transpose(0, 1).reshape(rows, heads, q, -1)

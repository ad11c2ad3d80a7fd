"""Estimate the memory of training and rollouts from a model's dimensions.

The estimate is accurate to about 25 %. It covers float32 weights, gradients and Adam moments; the
activations of one micro-batch under autocast; one chunk of logits; and the keys and values of all
concurrent episodes.
"""

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from spa.models.forward import GPU_LOGITS_CHUNK

# Bytes of one number in float32 and in bfloat16.
FULL = 4
HALF = 2
LOGIT_COPIES = 4  # the chunk, its lower-precision original, its softmax, its gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Dimensions of a model that determine its memory. `query_width` and `key_width` are the
    numbers of query heads and key heads, each times the head size."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    query_width: int
    key_width: int
    linear_widths: int  # inputs plus outputs of all linear layers of one block, for adapters


def model_shape(config: PretrainedConfig) -> ModelShape:
    """Compute the shape from a configuration; parameters are counted on the meta device, without
    allocating memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config(decoder=True)
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    keys = getattr(text, "num_key_value_heads", None) or heads
    layers = text.num_hidden_layers
    linear = [
        m
        for name, m in model.named_modules()
        if isinstance(m, torch.nn.Linear) and "head" not in name
    ]
    return ModelShape(
        parameters=sum(p.numel() for p in model.parameters()),
        layers=layers,
        hidden=text.hidden_size,
        # In GPT-2 and others, this key is missing or null, and the MLP is four times as wide as the
        # hidden states.
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        query_width=heads * size,
        key_width=keys * size,
        linear_widths=sum(m.in_features + m.out_features for m in linear) // layers,
    )


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """Return the number of parameters that LoRA trains if all linear layers have adapters of rank
    `rank`."""
    return rank * shape.linear_widths * shape.layers


def training_state(shape: ModelShape, *, lora_rank: int = 0) -> int:
    """Return the bytes of weights, gradients and Adam moments during training. With `lora_rank` 0,
    all weights are trained."""
    # Weights, gradients and two Adam moments, four numbers for each parameter.
    if lora_rank == 0:
        return 4 * FULL * shape.parameters
    # The frozen base needs only its weights.
    return FULL * shape.parameters + 4 * FULL * adapter_parameters(shape, lora_rank)


def activations(shape: ModelShape, tokens: int, *, checkpointing: bool, width: int = HALF) -> int:
    """Return the bytes that a forward pass over `tokens` tokens keeps for its backward pass,
    without logits.

    `width` is the number of bytes per number in matrix products. The residual stream and the norms
    are in float32.
    """
    # Bytes that one layer keeps per token.
    residual = 2 * FULL * shape.hidden
    norms = 2 * (2 * FULL + width) * shape.hidden
    attention = width * (3 * shape.query_width + 4 * shape.key_width)
    mlp = 4 * width * shape.intermediate
    block = residual + norms + attention + mlp
    last_norm = 2 * FULL * shape.hidden
    # Checkpointing keeps the input of each layer, and all activations of the one being recomputed.
    if checkpointing:
        return tokens * (shape.layers * FULL * shape.hidden + block + last_norm)
    return tokens * (shape.layers * block + last_norm)


def logits() -> int:
    """Return the bytes of one chunk of logits with its copies. Only one chunk is in memory at a
    time."""
    return LOGIT_COPIES * FULL * GPU_LOGITS_CHUNK


def cache(shape: ModelShape, episodes: int, length: int, *, width: int = HALF) -> int:
    """Return the bytes of the keys and values of `episodes` concurrent episodes of `length` tokens
    each. `width` is the number of bytes per number."""
    # The factor 2 counts keys and values.
    return episodes * 2 * length * shape.layers * shape.key_width * width

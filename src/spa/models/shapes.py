"""Architectures of well-known models, for computing their size and creating random weights without
a network. Numbers come from the models' published configurations."""

from typing import Any

from transformers import LlamaConfig, PretrainedConfig, Qwen2Config

# Settings that all sizes of Qwen2.5 share.
_QWEN2: dict[str, Any] = {
    "vocab_size": 151936,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "tie_word_embeddings": True,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
_QWEN2_SIZES: dict[str, dict[str, int]] = {
    "0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
    },
    "1.5B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
    },
    "3B": {
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
    },
}
_LLAMA_1B: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": True,
    "bos_token_id": 128000,
    "eos_token_id": 128009,
}


def known_config(name: str) -> PretrainedConfig | None:
    """Return the configuration of Qwen2.5 (0.5B, 1.5B, 3B) or Llama 3.2 (1B) by its Hub name; None
    for other names."""
    # "Qwen/Qwen2.5-0.5B-Instruct" has the shape of "Qwen2.5-0.5B".
    short = name.rpartition("/")[2].removesuffix("-Instruct")
    if short.startswith("Qwen2.5-") and (size := short.removeprefix("Qwen2.5-")) in _QWEN2_SIZES:
        shape: dict[str, Any] = {**_QWEN2, **_QWEN2_SIZES[size]}
        return Qwen2Config(**shape)
    return LlamaConfig(**_LLAMA_1B) if short == "Llama-3.2-1B" else None

"""Families of models as folders on the disk, as a Hub would serve them: config, safetensors weights, tokenizer."""

from pathlib import Path
from typing import Any

import torch
from helpers.families import CHATML, FAMILIES, small_model, tokenizer, windowed_model
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

# Responses stand in a channel that the model opens itself; the template knows it only for finished responses.
CHANNELS = """{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- '<|start|>assistant<|channel|>final<|message|>' + message['content'] + '<|end|>' -}}
{%- else -%}
{{- '<|start|>' + message['role'] + '<|message|>' + message['content'] + '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}"""

# The generation prompt starts a think block, whatever it is asked.
THINKING = CHATML.replace(
    "'<|im_start|>assistant\n' -}}{%- endif", "'<|im_start|>assistant\n<think>\n' -}}{%- endif"
)

# There is no generation prompt.
SILENT = CHATML[: CHATML.index("{%- if add_generation_prompt")]

TEMPLATES = {"thinking": THINKING, "silent": SILENT}


def save_family(name: str, folder: Path) -> Path:
    """A folder with a tiny random model of the family."""
    made = family_tokenizer(name)
    family_model(name, made).save_pretrained(folder)
    made.save_pretrained(folder)
    return folder


def family_tokenizer(name: str) -> PreTrainedTokenizerFast:
    if name in FAMILIES:
        return tokenizer(name)
    if name in ("gemma2", "gemma3"):
        return tokenizer("gemma")
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer("qwen2").backend_tokenizer, pad_token="<pad>"
    )
    if name == "gpt_oss":
        made.add_special_tokens(
            {
                "eos_token": "<|return|>",
                "additional_special_tokens": ["<|start|>", "<|message|>", "<|channel|>", "<|end|>"],
            }
        )
        made.chat_template = CHANNELS
    else:
        made.add_special_tokens({"eos_token": "<|im_end|>"})
        made.chat_template = TEMPLATES[name]
    return made


def family_model(name: str, made: PreTrainedTokenizerFast) -> Any:
    if name == "gemma3":
        return windowed_model()
    if name == "mistral":  # older Mistral models look back over a window in every layer
        return small_model("mistral", sliding_window=24)
    if name in FAMILIES:
        return small_model(name)
    settings: dict[str, Any] = {
        "vocab_size": len(made),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": 8192,
        "initializer_range": 0.15,
        "pad_token_id": made.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": made.eos_token_id,
    }
    if name == "gemma2":
        return without_sdpa(Gemma2Config(**settings, query_pre_attn_scalar=8, sliding_window=24))
    if name == "gpt_oss":
        return without_sdpa(
            GptOssConfig(**settings, num_local_experts=2, num_experts_per_tok=1, sliding_window=24)
        )
    return small_model("qwen2", vocabulary=len(made))


def without_sdpa(config: PretrainedConfig) -> Any:
    """A model of an architecture that the fused kernels do not cover: soft caps, attention sinks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()

"""Tiny vision-language models with random weights, as folders on the disk: one whose pictures take as many tokens as
their size asks for (Qwen2-VL), one with a fixed number (LLaVA)."""

from pathlib import Path
from typing import Any

import torch
from helpers.families import tokenizer
from transformers import (
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

SEEING = ("qwen2_vl", "llava")

# Content is a text, or a list of parts of which some are pictures.
TEMPLATE = """{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' -}}
{%- if message['content'] is string -%}{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{{- part['text'] if part['type'] == 'text' else '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""

TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 8192,
    "initializer_range": 0.15,
    "bos_token_id": None,
}


def save_seeing(name: str, folder: Path) -> Path:
    """A folder with a tiny random vision-language model: weights, tokenizer, image processor."""
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer("qwen2").backend_tokenizer, pad_token="<pad>"
    )
    specials = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    made.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": specials})
    made.chat_template = TEMPLATE
    config, processor = _parts(name, made)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = AutoModelForImageTextToText.from_config(config).float().eval()
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _parts(name: str, made: PreTrainedTokenizerFast) -> tuple[Any, Any]:
    image_id = made.convert_tokens_to_ids("<|image_pad|>")
    text = TEXT | {
        "vocab_size": len(made),
        "pad_token_id": made.pad_token_id,
        "eos_token_id": made.eos_token_id,
    }
    if name == "llava":
        seen: Any = CLIPVisionConfig(
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=32,
            patch_size=8,
        )
        config: Any = LlavaConfig(
            vision_config=seen,
            text_config=LlamaConfig(**text),
            image_token_index=image_id,
            image_seq_length=16,
            vision_feature_select_strategy="default",
        )
        return config, CLIPImageProcessorPil(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
        )
    config = Qwen2VLConfig(
        text_config=text
        | {
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [1, 1, 2],
                "rope_theta": 10000.0,
            }
        },
        vision_config={
            "depth": 2,
            "embed_dim": 16,
            "hidden_size": 32,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": 8,
        },
        image_token_id=image_id,
        video_token_id=made.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=made.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=made.convert_tokens_to_ids("<|vision_end|>"),
    )
    return config, Qwen2VLImageProcessorPil(
        patch_size=8, merge_size=2, min_pixels=16 * 16, max_pixels=96 * 96
    )

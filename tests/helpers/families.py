"""Small tokenizers and models in the style of the families that people use, built on the spot.

The chat templates are our own, written to behave like the families': which markers stand where, whether a system
message is taken, what happens to thoughts in earlier responses.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from spa.prompts.template import ChatTemplate

torch.set_num_threads(1)

CORPUS = (
    "You are a helpful assistant.\nTurn 1:\nState:\nholes (O) are at (2,0); goal (G) is at (1,1); player (P) is at (0,3).",
    "Actions: Left, Down, Right, Up. Actions left: 10. Reply only with <think>your thoughts</think><answer>actions"
    "</answer> in at most 100 words. Reward: -0.1\n\nTurn 2:\nState:\n_P__\nO__O\n____\n__G_",
    "<think><observation>the state as it is now</observation> your plan <prediction>the state after your actions"
    "</prediction></think><answer>Left || Up || Right || Down</answer>",
)

CHATML = """{%- if messages[0]['role'] != 'system' -%}
{{- '<|im_start|>system\nYou are a model of the house.<|im_end|>\n' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""

# Thoughts of responses before the last user message are left out; an empty think block stands where thinking is off.
QWEN3 = """{%- set place = namespace(last=0) -%}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}{%- set place.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- set text = message['content'] -%}
{%- if message['role'] == 'assistant' and '</think>' in text and loop.index0 < place.last -%}
{%- set text = text.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\n' + text + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}
{%- endif -%}"""

LLAMA3 = """{{- bos_token -}}
{%- for message in messages -%}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}"""

GEMMA = """{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}{{- raise_exception('there is no system role') -}}{%- endif -%}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}"""

# The system text stands in front of the first user message.
MISTRAL = """{%- set found = namespace(system='') -%}
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'system' -%}
{%- set found.system = message['content'] + '\n\n' -%}
{%- elif message['role'] == 'user' -%}
{{- '[INST] ' + found.system + message['content'] + '[/INST]' -}}
{%- set found.system = '' -%}
{%- else -%}
{{- message['content'] + eos_token -}}
{%- endif -%}
{%- endfor -%}"""

UNMARKED = """{%- for message in messages -%}
{%- if message['role'] == 'user' -%}{{- 'Question: ' + message['content'] + '\n\n' -}}
{%- elif message['role'] == 'assistant' -%}{{- 'Reply: ' + message['content'] + '\n\n' -}}
{%- else -%}{{- message['content'] + '\n\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Reply: ' -}}{%- endif -%}"""


@dataclass(frozen=True)
class Family:
    """A chat template, its special tokens, and the kind of model and tokenizer that it comes with."""

    name: str
    chat_template: str
    specials: tuple[str, ...]
    eos: str
    bos: str | None
    pieces: str  # "bytes" or "sentencepiece"
    config: Callable[..., PretrainedConfig]
    keeps_history: bool = True  # whether rendering the whole conversation again gives the same text


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "qwen2",
            CHATML,
            ("<|im_start|>", "<|im_end|>"),
            "<|im_end|>",
            None,
            "bytes",
            Qwen2Config,
        ),
        Family(
            "qwen3",
            QWEN3,
            ("<|im_start|>", "<|im_end|>"),
            "<|im_end|>",
            None,
            "bytes",
            Qwen3Config,
            False,
        ),
        Family(
            "llama3",
            LLAMA3,
            (
                "<|begin_of_text|>",
                "<|end_of_text|>",
                "<|start_header_id|>",
                "<|end_header_id|>",
                "<|eot_id|>",
            ),
            "<|end_of_text|>",
            "<|begin_of_text|>",
            "bytes",
            LlamaConfig,
        ),
        Family(
            "gemma",
            GEMMA,
            ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
            "<eos>",
            "<bos>",
            "sentencepiece",
            GemmaConfig,
        ),
        Family(
            "mistral",
            MISTRAL,
            ("<s>", "</s>", "[INST]", "[/INST]"),
            "</s>",
            "<s>",
            "sentencepiece",
            MistralConfig,
        ),
        Family("unmarked", UNMARKED, ("<|end|>",), "<|end|>", None, "bytes", Qwen2Config),
    )
}
NAMES = tuple(FAMILIES)


@functools.cache
def tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The family's tokenizer, about 600 tokens; any text encodes."""
    family = FAMILIES[name]
    made = _byte_level() if family.pieces == "bytes" else _sentencepiece(prefix=name == "mistral")
    made.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in ("<pad>", *family.specials)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=family.eos,
        bos_token=family.bos,
        pad_token="<pad>",
        model_max_length=8192,
    )
    fast.chat_template = family.chat_template
    return fast


def template(name: str) -> ChatTemplate:
    """A new ChatTemplate over the family's tokenizer."""
    return ChatTemplate(tokenizer(name))


def small_model(name: str, *, seed: int = 0, vocabulary: int | None = None, **changes: Any) -> Any:
    """A random causal LM of the family: 2 layers, hidden size 32, logits that differ from token to token."""
    settings: dict[str, Any] = {
        "vocab_size": vocabulary or len(tokenizer(name)),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": 8192,
        "initializer_range": 0.15,
        "pad_token_id": tokenizer(name).pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer(name).eos_token_id,
    }
    if name == "mistral":
        settings["sliding_window"] = None
    return random_model(FAMILIES[name].config(**settings | changes), seed)


def windowed_model(*, seed: int = 0) -> Any:
    """A model with alternating windowed and full attention, and a window that is shorter than any prompt."""
    made = tokenizer("gemma")
    config = Gemma3TextConfig(
        vocab_size=len(made),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        initializer_range=0.15,
        query_pre_attn_scalar=8,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        pad_token_id=made.pad_token_id,
        eos_token_id=made.eos_token_id,
    )
    return random_model(config, seed)


def random_model(config: PretrainedConfig, seed: int) -> Any:
    """A causal LM with seeded random weights, in evaluation mode; the global random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model.float().eval()


def _byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def _sentencepiece(*, prefix: bool) -> Tokenizer:
    """BPE over text whose spaces are visible, with single bytes for what it does not know. `prefix`: texts are given a
    space in front that decoding takes away again."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Split(Regex("(?<=[^▁])(?=▁)"), behavior="isolated")
    made.normalizer = normalizers.Replace(" ", "▁")
    made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    spec = json.loads(made.to_str())
    vocabulary = spec["model"]["vocab"]
    for byte in range(256):
        vocabulary.setdefault(f"<0x{byte:02X}>", len(vocabulary))
    spec["model"] |= {"byte_fallback": True, "fuse_unk": True}
    spec["pre_tokenizer"] = None
    made = Tokenizer.from_str(json.dumps(spec))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        steps.append(decoders.Strip(" ", 1, 0))
    made.decoder = decoders.Sequence(steps)
    return made

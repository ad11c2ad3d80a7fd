"""Chat templates of our own in the style of the families, one per quirk, with small tokenizers; and the table of
docs/models.md, which is made from them: python -m helpers.template_families docs/models.md (in tests/)."""

import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from helpers.families import _byte_level, _sentencepiece
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from spa.errors import ModelError
from spa.prompts.template import ChatTemplate, check_tokens

FOLDER = Path(__file__).parents[1] / "golden" / "templates"
_IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


@dataclass(frozen=True)
class Style:
    """A family's template by the name of its file, its control tokens, and what is special about it."""

    name: str
    title: str
    quirk: str
    specials: tuple[str, ...]
    eos: str
    bos: str | None = None
    pieces: str = "bytes"  # "bytes", or "sentencepiece": a space in front of every text
    stops: tuple[
        str, ...
    ] = ()  # further ends of a response that the model's generation config names


STYLES = {
    style.name: style
    for style in (
        Style(
            "qwen2",
            "Qwen2, Qwen2.5",
            "a system turn of its own",
            _IM,
            "<|im_end|>",
            stops=("<|endoftext|>",),
        ),
        Style(
            "smollm2",
            "SmolLM2",
            "a system turn of its own, written without white space control",
            _IM,
            "<|im_end|>",
        ),
        Style(
            "zephyr",
            "Zephyr",
            "role names are plain text",
            ("<s>", "</s>"),
            "</s>",
            "<s>",
            "sentencepiece",
        ),
        Style(
            "phi3",
            "Phi-3",
            "responses end with another token than a text",
            ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"),
            "<|endoftext|>",
            stops=("<|end|>", "<|assistant|>"),
        ),
        Style(
            "glm4",
            "GLM-4",
            "a response ends with the next user's mark",
            (
                "[gMASK]",
                "<sop>",
                "<|system|>",
                "<|user|>",
                "<|assistant|>",
                "<|observation|>",
                "<|endoftext|>",
            ),
            "<|endoftext|>",
            stops=("<|user|>", "<|observation|>"),
        ),
        Style(
            "strict",
            "templates that demand a system turn",
            "raises without a system turn",
            _IM,
            "<|im_end|>",
        ),
        Style(
            "dated",
            "templates with a date",
            "the day of the week in the system turn",
            _IM,
            "<|im_end|>",
        ),
        Style(
            "qwen3",
            "Qwen3",
            "earlier thoughts are cut",
            _IM,
            "<|im_end|>",
            stops=("<|endoftext|>",),
        ),
        Style("smollm3", "SmolLM3", "date, mode of thinking in the system turn", _IM, "<|im_end|>"),
        Style(
            "llama3",
            "Llama 3.1 to 3.3",
            "white space is trimmed, the date in the system turn",
            (
                "<|begin_of_text|>",
                "<|end_of_text|>",
                "<|start_header_id|>",
                "<|end_header_id|>",
                "<|eot_id|>",
            ),
            "<|eot_id|>",
            "<|begin_of_text|>",
            stops=("<|end_of_text|>", "<|eot_id|>"),
        ),
        Style(
            "gemma1",
            "Gemma 1 and 2",
            "raises at a system turn, white space is trimmed",
            ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
            "<eos>",
            "<bos>",
            stops=("<end_of_turn>",),
        ),
        Style(
            "gemma3",
            "Gemma 3",
            "the system text goes into the first user turn, white space is trimmed",
            ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
            "<eos>",
            "<bos>",
            stops=("<end_of_turn>",),
        ),
        Style(
            "llama2",
            "Llama 2",
            "white space around responses, trimmed inside; marks are plain text",
            ("<s>", "</s>"),
            "</s>",
            "<s>",
            "sentencepiece",
        ),
        Style(
            "mistral_v03",
            "Mistral 7B v0.3",
            "the system text moves to the last user turn",
            ("<s>", "</s>", "[INST]", "[/INST]"),
            "</s>",
            "<s>",
            "sentencepiece",
        ),
        Style(
            "deepseek_r1",
            "DeepSeek-R1 and its distillations",
            "earlier thoughts are cut, responses are opened with a thought",
            ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
            "<｜end▁of▁sentence｜>",
            "<｜begin▁of▁sentence｜>",
        ),
        Style(
            "deepseek_v31",
            "DeepSeek-V3.1",
            "earlier thoughts are cut, responses are opened behind a thought",
            ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
            "<｜end▁of▁sentence｜>",
            "<｜begin▁of▁sentence｜>",
        ),
        Style(
            "gpt_oss",
            "GPT-OSS",
            "channels, date, another end for the last response",
            ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"),
            "<|return|>",
            stops=("<|return|>",),
        ),
        Style(
            "chatglm2",
            "ChatGLM2",
            "rounds are numbered, nothing ends a response",
            ("</s>",),
            "</s>",
        ),
        Style(
            "falcon",
            "Falcon",
            "names as plain text, nothing ends a response",
            ("<|endoftext|>",),
            "<|endoftext|>",
        ),
        Style(
            "window", "templates with a window", "only the last turns are shown", _IM, "<|im_end|>"
        ),
        Style(
            "forgetful",
            "templates that keep the last message alone",
            "responses are lost",
            _IM,
            "<|im_end|>",
        ),
    )
}


@functools.cache
def _pieces(kind: str) -> str:
    return (_byte_level() if kind == "bytes" else _sentencepiece(prefix=True)).to_str()


@functools.cache
def styled_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a style, some 700 tokens; any text encodes."""
    style = STYLES[name]
    made = Tokenizer.from_str(_pieces(style.pieces))
    made.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in ("<pad>", *style.specials)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=style.eos,
        bos_token=style.bos,
        pad_token="<pad>",
        model_max_length=8192,
    )
    fast.chat_template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    return fast


def styled_template(name: str) -> ChatTemplate:
    """The checked template of a style. Raises ModelError if it is refused."""
    made = styled_tokenizer(name)
    template = ChatTemplate(made, stop_ids=made.convert_tokens_to_ids(list(STYLES[name].stops)))
    check_tokens(template)
    return template


def table() -> str:
    """The table of docs/models.md."""
    lines = ["| style of | what its template does | template that is used |", "|---|---|---|"]
    for name, style in STYLES.items():
        try:
            pinned = styled_template(name).pinned
        except ModelError as error:
            reason = str(error).partition(", so ")[0].removeprefix("The chat template ")
            lines.append(f"| {style.title} | {style.quirk} | refused: {reason} |")
            continue
        lines.append(f"| {style.title} | {style.quirk} | {'pinned' if pinned else 'its own'} |")
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the table as it is."""
    return re.sub(
        r"(<!-- families -->\n).*?(\n\n)",
        lambda found: found[1] + table() + found[2],
        page,
        flags=re.S,
    )


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.write_text(with_table(place.read_text(encoding="utf-8")), encoding="utf-8")

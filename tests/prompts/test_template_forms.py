"""Chat templates that are not what one expects: think blocks of their own, no generation prompt, channels."""

import pytest
from helpers.model_folders import family_tokenizer

from spa.prompts.template import ChatTemplate

SYSTEM, GO = {"role": "system", "content": "Rules."}, {"role": "user", "content": "go"}


def texts(name: str, prefill: str = "<think>") -> tuple[str, str]:
    """What the first prompt ends with, and what stands between a response and the next."""
    made = ChatTemplate(family_tokenizer(name))
    decode = made.tokenizer.decode
    return decode(made.start((SYSTEM, GO), prefill)), decode(
        made.follow("on", prefill, response=())
    )


@pytest.mark.parametrize("name", ["thinking", "silent"])
@pytest.mark.parametrize("prefill", ["<think>", "<answer>"])
def test_responses_begin_with_the_prefill_after_the_assistant_header(name, prefill):
    first, later = texts(name, prefill)
    assert first.endswith(f"<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n{prefill}")
    assert later == f"<|im_end|>\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n{prefill}"


def test_a_channel_that_only_finished_responses_have_stands_before_the_prefill():
    first, later = texts("gpt_oss")
    header = "<|start|>assistant<|channel|>final<|message|><think>"
    assert (
        first == f"<|start|>system<|message|>Rules.<|end|><|start|>user<|message|>go<|end|>{header}"
    )
    assert later == f"<|end|><|start|>user<|message|>on<|end|>{header}"


def test_both_ends_of_a_response_are_known():
    made = ChatTemplate(family_tokenizer("gpt_oss"))
    assert {made.tokenizer.decode([i]) for i in made.stop_ids} == {"<|return|>", "<|end|>"}
    assert made.tokenizer.decode([made.end_id]) == "<|end|>"

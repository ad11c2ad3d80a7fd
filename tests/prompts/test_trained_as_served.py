"""What is trained is what will be served: a template of every family, replayed, classified, and pinned where it must."""

import copy
from datetime import datetime
from pathlib import Path

import pytest
from helpers.families import CHATML, tokenizer
from helpers.template_families import STYLES, styled_template, styled_tokenizer, with_table
from tokenizers import AddedToken
from transformers import AutoTokenizer

from spa.errors import ModelError
from spa.prompts.template import (
    ChatTemplate,
    appended,
    check_tokens,
    joined_borders,
    prefill_of,
    served_ids,
)
from spa.prompts.template_parts import CONVERSATIONS, SYSTEM_TURN, alternate
from spa.prompts.text_tokens import TextTokens

EXACT = ("qwen2", "smollm2", "zephyr", "phi3", "glm4", "strict")
USED = [name for name in STYLES if name != "forgetful"]
PINNED = [name for name in USED if name not in EXACT]
FEW = (
    "qwen2",
    "phi3",
    "glm4",
    "gemma1",
    "llama2",
    "mistral_v03",
    "deepseek_r1",
    "gpt_oss",
    "chatglm2",
)
"""One family for each way of marking roles and ends."""
REASONS = {
    "dated": "the template writes the current date",
    "smollm3": "the template writes the current date",
    "llama3": "the template writes the current date",
    "gpt_oss": "the template writes the current date",
    "gemma1": "the template refuses a system message",
}
"""Why a template is pinned; others write something else than was trained."""


@pytest.mark.parametrize("name", USED)
def test_every_family_is_used_as_it_is_or_pinned_with_the_reason(name):
    reason = styled_template(name).pinned
    assert bool(reason) == (name in PINNED)
    assert reason == REASONS.get(name, reason) and (
        name in REASONS or "training uses" in reason or not reason
    )


def test_the_table_of_the_docs_is_what_is_found():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert with_table(page) == page, (
        "run in tests/: python -m helpers.template_families ../docs/models.md"
    )


@pytest.mark.parametrize("name", sorted({*PINNED, *FEW}))
def test_a_saved_tokenizer_alone_reads_what_was_trained_and_changes_no_prompt(name, tmp_path):
    made = styled_template(name)
    made.save_pretrained(tmp_path)
    plain = AutoTokenizer.from_pretrained(tmp_path)
    again = ChatTemplate(plain, stop_ids=made.stop_ids)
    check_tokens(again)
    assert not again.pinned
    assert (again.stop_ids, again.end_ids) == (made.stop_ids, made.end_ids)
    for users, responses in CONVERSATIONS:
        messages = [SYSTEM_TURN, *alternate(users, responses)]
        text = plain.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        served = plain(text + prefill_of(messages), add_special_tokens=False)["input_ids"]
        ours, borders = appended(made, messages)
        assert plain.decode(served) == plain.decode(ours)
        joined_borders(ours, served, borders)
        assert appended(again, messages) == (ours, borders)


@pytest.mark.parametrize("name", [name for name in FEW if name in PINNED])
def test_a_response_that_was_begun_is_continued_by_a_plain_server(name):
    made = styled_template(name)
    messages = [
        SYSTEM_TURN,
        {"role": "user", "content": "Rules."},
        {"role": "assistant", "content": "<think>"},
    ]
    text = made.tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    assert made.encode(text) == made.start(tuple(messages[:2]), "<think>")


def test_prompts_do_not_change_with_the_date(monkeypatch):
    assert "26 Jul 2024" in (text := served_text("llama3"))
    assert served_text("dated").startswith(
        "<|im_start|>system\nIt is Friday, 26 Jul 2024. You play"
    )

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2031, 11, 5)

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Later)
    assert "05 Nov 2031" in styled_tokenizer("llama3").apply_chat_template(
        [SYSTEM_TURN], tokenize=False
    )
    assert served_text("llama3") == text


def served_text(name: str) -> str:
    made = styled_template(name)
    return made.tokenizer.decode(served_ids(made, [SYSTEM_TURN, *alternate(["Rules."], [])]))


def test_a_thinking_model_is_not_told_to_stop_thinking():
    assert "Reasoning Mode: /think\n" in served_text("smollm3")


def test_white_space_of_the_users_text_is_what_the_template_makes_of_it():
    messages = (SYSTEM_TURN, {"role": "user", "content": "  a \n"})
    for name, kept in (("qwen2", "  a \n"), ("llama3", "a")):
        made = styled_template(name)
        for ids in (made.start(messages, "<think>"), made.follow("  a \n", "<think>")):
            text = made.tokenizer.decode(ids)
            place = text.rindex("user") + len("user")
            assert text[place:].startswith(
                ("\n" if name == "qwen2" else "<|end_header_id|>\n\n") + kept + "<|"
            )


@pytest.mark.parametrize("name", ["llama2", "qwen2", "chatglm2", "zephyr"])
def test_an_end_marker_of_any_length_is_never_doubled(name):
    made = styled_template(name)
    whole = made.follow("on", "<think>")
    count = len(made.end_ids)
    assert whole[:count] == made.end_ids and made.end_id in made.stop_ids
    response = made.response_ids("<think>x</think>", "<think>")
    for sampled in range(count + 1):  # a response that was cut off inside the marker gets the rest
        assert (
            made.follow("on", "<think>", response=response[: len(response) - count + sampled])
            == whole[sampled:]
        )
    assert made.follow("on", "<think>", response=[*response[:-count], made.end_id]) == whole[count:]
    assert len(styled_template("llama2").end_ids) == 2


@pytest.mark.parametrize("name", ["llama2", "mistral_v03", "zephyr"])
@pytest.mark.parametrize("response", ["x", " x", "\nx y", "", "é\n"])
def test_responses_are_encoded_and_decoded_in_context(name, response):
    made = styled_template(name)
    ids = made.response_ids("<think>" + response, "<think>")
    assert made.decode_response(ids) == response
    prompt = made.start(({"role": "user", "content": "go"},), "<think>")
    read = made.tokenizer.decode([*prompt, *ids[: -len(made.end_ids)]])
    assert read.endswith("<think>" + response)
    # alone it would be read otherwise
    assert made.encode(read.rpartition("<think>")[2]) != ids or not response


@pytest.mark.parametrize("name", FEW)
def test_control_tokens_in_a_text_are_text(name):
    made = styled_template(name)
    control = [*STYLES[name].specials, "<pad>"]
    hostile = "".join(f"a{text}{text}" for text in control) + " \ufdd0<think>"
    plain = (SYSTEM_TURN, {"role": "user", "content": "go"})
    ids = made.start((SYSTEM_TURN, {"role": "user", "content": f"go{hostile}"}), "<think>")
    special = set(made.tokenizer.convert_tokens_to_ids(control))
    expected = [i for i in made.start(plain, "<think>") if i in special]
    assert [i for i in ids if i in special] == expected
    assert hostile in made.tokenizer.decode(ids)
    later, quiet = made.follow(f"go{hostile}", "<think>"), made.follow("go", "<think>")
    assert [i for i in later if i in special] == [i for i in quiet if i in special]
    assert hostile in made.tokenizer.decode(later)
    response = made.response_ids("<think>" + hostile, "<think>")
    assert not special & set(response[: -len(made.end_ids)])
    assert made.decode_response(response) == hostile


def test_added_tokens_of_a_template_are_control_tokens():
    """Some vocabularies do not mark the tokens of a turn as special."""
    marked = copy.deepcopy(tokenizer("qwen2"))
    marked.add_tokens([AddedToken("<|turn|>", special=False, normalized=False)])
    own = marked.convert_tokens_to_ids("<|turn|>")
    tokens = TextTokens(marked)
    assert tokens.guarded(["a<|turn|>b"]) == ("", ["a<|turn|>b"])
    tokens.know_markers(["{{ '<|turn|>' + message['content'] }}"])
    guard, (told,) = tokens.guarded(["a<|turn|>b"])
    ids = tokens.encode_pieces(told, guard, first=True)
    assert own not in ids and tokens.decode(ids) == "a<|turn|>b"


def test_stop_ids_are_those_of_tokenizer_template_and_generation_config():
    names = {
        name: set(styled_template(name).tokenizer.convert_ids_to_tokens(sorted(stops(name))))
        for name in USED
    }
    assert names["phi3"] == {"<|end|>", "<|endoftext|>", "<|assistant|>"}
    assert names["glm4"] == {"<|endoftext|>", "<|user|>", "<|observation|>"}
    assert names["qwen2"] == {"<|im_end|>", "<|endoftext|>"}
    assert names["gemma1"] == {"<eos>", "<end_of_turn>"}
    assert names["chatglm2"] == {"</s>"}


def stops(name: str) -> frozenset[int]:
    return styled_template(name).stop_ids


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ raise_exception('not like this') }}", "cannot be rendered: not like this"),
        ("{% for message in %}", "cannot be rendered: Expected an expression"),
        ("{{ messages[7]['content'] }}", "cannot be rendered"),
        ("{{ messages.nothing() }}", "cannot be rendered"),
        ("{{ 1 / 0 }}", "cannot be rendered: division by zero"),
        (
            "{%- macro f() -%}{{ f() }}{%- endmacro -%}{{ f() }}",
            "cannot be rendered: maximum recursion depth",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_one_clean_error(text, words, monkeypatch):
    made = tokenizer("qwen2")
    monkeypatch.setattr(made, "chat_template", text)
    with pytest.raises(ModelError, match=words):
        ChatTemplate(made)


def test_a_template_that_fails_late_is_replaced(monkeypatch):
    made = tokenizer("qwen2")
    late = "{%- if messages | length > 9 -%}{{- raise_exception('too long') -}}{%- endif -%}"
    monkeypatch.setattr(made, "chat_template", late + CHATML)
    assert ChatTemplate(made).pinned == "the template does not render every conversation: too long"


def test_a_tokenizer_that_reads_wholes_otherwise_is_refused():
    with pytest.raises(
        ModelError, match="splits a whole conversation differently from its separate turns"
    ):
        joined_borders([1, 2, 3, 4], [1, 9, 3, 4], [3])
    assert joined_borders([1, 2, 3, 4], [1, 2, 9, 4], [3]) == 1

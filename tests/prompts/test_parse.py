import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.formats.blocks import MARKERS, find_block
from spa.formats.registry import parse_response
from spa.types import ParsedResponse

CASES = json.loads((Path(__file__).parent.parent / "golden" / "responses.json").read_text())[
    "cases"
]
MODES = ("base", "add_worldmodel")

noise = st.text(st.characters(), max_size=20)  # every code point, lone surrogates included
hostile = st.lists(st.sampled_from([*MARKERS, "||", "Left", "\n"]) | noise, max_size=25).map(
    "".join
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_hostile_responses(case):
    options = {
        name: case[name] for name in ("enable_think", "action_sep", "max_actions") if name in case
    }
    expect = ParsedResponse(**{**case["expect"], "actions": tuple(case["expect"]["actions"])})
    assert parse_response(case["text"], mode=case["mode"], **options) == expect


@given(
    hostile,
    st.sampled_from(MODES),
    st.booleans(),
    st.sampled_from(["||", ";", "", "\n"]),
    st.integers(-1, 6),
)
def test_any_text_gives_a_response_made_of_its_own_pieces(
    text, mode, enable_think, sep, max_actions
):
    response = parse_response(
        text, mode=mode, enable_think=enable_think, action_sep=sep, max_actions=max_actions
    )
    assert len(response.actions) <= max(max_actions, 0)
    for action in response.actions:
        assert action and action == action.strip()
        if mode == "add_worldmodel":
            assert action in text and not any(marker in action for marker in MARKERS)
    if response.actions and mode == "add_worldmodel":
        assert text.count("<answer>") == text.count("</answer>") == 1
    for part in (response.observation, response.prediction):
        assert part is None or (part == part.strip() and part in text)
    if response.well_formed:
        assert response.actions
        if enable_think or mode == "add_worldmodel":
            assert response.think is not None
        if mode == "add_worldmodel":
            assert response.observation is not None and response.prediction is not None


def original_actions(
    text: str, *, enable_think: bool, action_sep: str, max_actions: int
) -> list[str]:
    """The rule of the original's base mode (`SPA_agent/ctx_manager.py`, `_parse_response`), line by line."""
    pattern = (
        r"<think>(.*?)</think>\s*<answer>(.*?)</answer>"
        if enable_think
        else r"<answer>(.*?)</answer>"
    )
    match = re.search(pattern, text, re.DOTALL)
    if not match:
        return []
    answer = match.group(2 if enable_think else 1)
    for special in ("<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>"):
        answer = answer.replace(special, "").strip()
    return [action.strip() for action in answer.split(action_sep) if action.strip()][:max_actions]


blocks = st.sampled_from(
    [
        "<think>a</think>",
        "</think> <answer>",
        "<answer>Up</answer>",
        "Left || Up",
        "<|im_end|>",
        "<think>",
        "</answer>",
    ]
)
fuzzed = st.lists(
    blocks | st.sampled_from([*MARKERS, "||", "Left", "\n"]) | noise, max_size=12
).map("".join)


@settings(max_examples=300, deadline=None)
@given(fuzzed, st.booleans(), st.sampled_from(["||", ";"]), st.integers(0, 6))
def test_base_mode_executes_what_the_original_executes(text, enable_think, sep, max_actions):
    # with and without the prefill
    for response_text in (text, f"<think>{text}" if enable_think else f"<answer>{text}"):
        response = parse_response(
            response_text,
            mode="base",
            enable_think=enable_think,
            action_sep=sep,
            max_actions=max_actions,
        )
        expected = original_actions(
            response_text, enable_think=enable_think, action_sep=sep, max_actions=max_actions
        )
        assert response.actions == tuple(expected)
        assert response.well_formed == bool(expected)  # penalized in the same cases, too


def test_base_mode_plays_the_first_of_two_answers_and_nothing_of_a_broken_response():
    two = parse_response("<think>a</think><answer>Up</answer><answer>Down</answer>", mode="base")
    assert two.actions == ("Up",)
    assert parse_response("<think>a</think> so <answer>Up</answer>", mode="base").actions == ()
    assert parse_response("<answer>Up</answer>", mode="base").actions == ()


def test_empty_actions_take_no_place():
    text = "<think>a</think><answer>|| Left || || Up || Down</answer>"
    assert parse_response(text, mode="base", max_actions=2).actions == ("Left", "Up")


@given(hostile, st.sampled_from(["think", "observation", "prediction", "answer"]))
def test_a_block_is_found_exactly_when_there_is_one(text, tag):
    span = find_block(text, tag)
    pieces = text.split(f"<{tag}>")
    unique = len(pieces) == 2 and text.count(f"</{tag}>") == 1 and f"</{tag}>" in pieces[1]
    assert (span is not None) == unique
    if span is not None:
        assert text[span[0] : span[1]] == pieces[1].split(f"</{tag}>")[0]


@pytest.mark.parametrize(
    "piece",
    [
        "<",
        "</think>",
        "</think> ",
        "<think>",
        "</think><think>",
        "<think><observation>",
        "||",
        " ",
        "<answer",
        "\0",
    ],
)
def test_a_megabyte_of_noise_is_read_in_one_pass(piece):
    """Anything worse than linear would not come back."""
    bulk = piece * (1_000_000 // len(piece))
    assert not parse_response(bulk, mode="add_worldmodel").actions
    assert parse_response(f"<answer>{bulk}", mode="add_worldmodel").actions == ()
    end = parse_response(f"{bulk}<answer>Left</answer>", mode="add_worldmodel")
    assert (end.actions, end.well_formed) == (("Left",), False)
    parse_response(f"<think>{bulk}</think>{bulk}<answer>{bulk}", mode="base")


def test_a_mode_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="add_worldmodel"):
        parse_response("", mode="worldmodel")

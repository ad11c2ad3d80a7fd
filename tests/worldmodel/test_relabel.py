from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from worldmodel_examples import make_turn, response_to

from spa.formats.blocks import MARKERS
from spa.formats.plans import chosen_plan
from spa.formats.registry import parse_response, relabel_turn, world_model_response

GOLDEN = """<think>
<observation>
######
#_P_X#
</observation>
I push it, \\1 box.
<prediction>
######
#__PX#
</prediction>
</think>
<answer>Right || Down</answer>"""


def test_states_and_answer_become_the_truth_and_thoughts_stay():
    text = response_to("wrong", "wrong too", "Right||Down|| jump ", thoughts="I push it, \\1 box.")
    turn = make_turn(
        text, state="######\n#_P_X#", next_state="######\n#__PX#", executed=("Right", "Down")
    )
    assert relabel_turn(turn, action_sep="||").text == GOLDEN


def test_text_outside_the_blocks_goes():
    turn = make_turn(f"  {response_to('a', 'b', 'Left')} and so on", state="S", next_state="N")
    assert relabel_turn(turn, action_sep="||").text == response_to("S", "N", "Left")


states = st.text(min_size=1).filter(lambda text: text.strip())


@given(states, states, st.text())
@example("0", "\\g<1>", "")
@example("3_P_ $1 {0} %s", "\\1 <b>&amp;||\0", "\\")
def test_any_state_is_written_exactly_or_not_at_all(state, next_state, thoughts):
    text = response_to("x", "y", "Left", thoughts=thoughts)
    out = relabel_turn(make_turn(text, state=state, next_state=next_state), action_sep="||")
    if any(marker in part for marker in MARKERS for part in (state, next_state, thoughts)):
        assert out.text is None
    else:
        assert out.text == response_to(state, next_state, "Left", thoughts=thoughts)


@pytest.mark.parametrize("tag", ["</observation>", "<prediction>", "<answer>", "</think>"])
def test_a_state_that_holds_a_tag_is_given_up(tag):
    for states_ in ({"state": f"a {tag} b"}, {"next_state": f"a {tag} b"}):
        out = relabel_turn(make_turn(response_to("x", "y", "Left"), **states_), action_sep="||")
        assert (out.text, out.reason) == (None, "state_or_action_holds_format_tags")


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        (make_turn("<think>hm</think><answer>Left</answer>"), "malformed"),
        (make_turn(response_to("a", "b", "Left").replace("</observation>", "")), "malformed"),
        (make_turn(response_to("a", "b</prediction><prediction>c", "Left")), "malformed"),
        (make_turn(response_to("a", "b", "jump"), executed=()), "nothing_executed"),
        (make_turn(response_to("a", "b", "Left"), next_state=" "), "no_next_state"),
        (make_turn("<think>hm</think><answer>Left</answer>", mode="base"), "no_state_blocks"),
        (
            make_turn(
                "<think><prediction>b</prediction><observation>a</observation></think><answer>Left</answer>",
                mode="base",
            ),
            "malformed",
        ),
        (
            make_turn(response_to("a", "b", "x"), executed=("a || b",)),
            "state_or_action_holds_format_tags",
        ),
    ],
)
def test_turns_that_cannot_be_corrected_say_why(turn, reason):
    out = relabel_turn(turn, action_sep="||")
    assert (out.text, out.reason) == (None, reason)


@pytest.mark.parametrize(
    ("thoughts", "kept"),
    [
        ("The goal is up. I do Right.", "The goal is up."),
        ("I do right, then Right, then jump.", ""),
        ("I do go up.", ""),
        ("I do Down.", ""),  # a plan, but not the one of the answer
        (
            "I do not see a hole to the right. The goal lies two cells further, so Right is safe.",
            None,
        ),
        ("I do not see a hole to the right.", None),
        ("I do Right, then wait", None),
    ],
)
def test_only_a_plan_is_replaced_by_the_plan_that_was_executed(thoughts, kept):
    text = world_model_response(
        "x", f" {thoughts} ", "y", "right || Right || go up || jump", order="plan_first"
    )
    turn = replace(
        make_turn(text, executed=("Right", "Right")),
        response=parse_response(text, mode="add_worldmodel"),
    )
    out = relabel_turn(turn, action_sep="||", order="plan_first").text
    before = thoughts if kept is None else kept
    told = f"{before} I do Right, then Right.".strip()
    assert out == world_model_response(
        "S0", f" {told} ", "S1", "Right || Right", order="plan_first"
    )


def test_a_chosen_plan_may_be_longer_than_five_actions():
    plan = ("Left",) * 6
    text = world_model_response(
        "x", chosen_plan(plan, "y"), "y", " || ".join(plan), order="choose_plan"
    )
    response_to = parse_response(text, mode="add_worldmodel", max_actions=6, order="choose_plan")
    turn = replace(make_turn(text, executed=plan), response=response_to)
    out = relabel_turn(turn, action_sep="||", order="choose_plan")
    assert response_to.well_formed and out.text is not None
    assert (
        parse_response(out.text, mode="add_worldmodel", max_actions=6, order="choose_plan").actions
        == plan
    )

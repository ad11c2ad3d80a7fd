"""The layouts of a world-model response: written, parsed, relabelled and scored alike."""

import pytest
from helpers.play import groups, play
from hypothesis import given
from hypothesis import strategies as st

from spa.formats.blocks import MARKERS
from spa.formats.plans import plan_sentence
from spa.formats.registry import parse_response, world_model_response
from spa.policies.scripted import ScriptedEngine, random_engine
from spa.types import Episode, ParsedResponse
from spa.worldmodel.accuracy import world_model_metrics
from spa.worldmodel.examples import episode_examples

ORDERS = ("prediction_first", "plan_first", "answer_first", "no_prediction")
orders = st.sampled_from(ORDERS)
plain = st.text(max_size=20).filter(lambda text: not any(marker in text for marker in MARKERS))
labels = st.lists(
    plain.map(lambda text: text.replace("|", "").strip()).filter(bool), min_size=1, max_size=5
)
hostile = st.lists(st.sampled_from([*MARKERS, "||", "Left", "\n"]) | plain, max_size=25).map(
    "".join
)


@given(plain, plain, plain, labels, orders, st.sampled_from(["||", " || "]), plain)
def test_what_was_written_in_a_layout_is_read_back_in_it(
    observation, thoughts, prediction, actions, order, between, after
):
    text = world_model_response(
        observation, thoughts, prediction, between.join(actions), order=order
    )
    assert parse_response(text + after, mode="add_worldmodel", order=order) == ParsedResponse(
        think=thoughts.strip(),
        observation=observation.strip(),
        prediction=None if order == "no_prediction" else prediction.strip(),
        actions=tuple(actions),
        well_formed=True,
    )


@given(plain, plain, labels, orders, orders)
def test_a_response_in_another_layout_is_malformed_and_its_actions_still_count(
    observation, prediction, actions, one, other
):
    text = world_model_response(observation, "", prediction, "||".join(actions), order=one)
    response = parse_response(text, mode="add_worldmodel", order=other)
    same = {one, other} <= {"prediction_first", "plan_first"} or one == other
    assert (response.well_formed, response.actions) == (same, tuple(actions))


@given(hostile, orders, st.sampled_from(["base", "add_worldmodel"]))
def test_no_text_makes_the_parser_raise(text, order, mode):
    response = parse_response(text, mode=mode, order=order)
    assert not response.well_formed or response.actions


def test_a_layout_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="plan_first"):
        parse_response("", mode="add_worldmodel", order="plan")  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ORDERS)
def test_every_layout_is_played_relabelled_and_scored(order):
    episodes = play(
        groups(3, 1), random_engine(max_actions=3), mode="add_worldmodel", response_format=order
    )
    for episode in episodes:
        assert all(turn.response.well_formed and turn.penalty == 0 for turn in episode.turns)
        assert Episode.from_json(episode.to_json()) == episode
        examples, dropped = episode_examples(episode, action_sep="||")
        assert len(examples) == len(episode.turns) and not dropped
        for example in examples:
            response = parse_response(example.response, mode="add_worldmodel", order=order)
            assert (
                response.well_formed
                and response.observation == example.state
                and response.actions == example.executed
            )
            assert response.prediction == (None if order == "no_prediction" else example.next_state)
            assert response.think == (
                plan_sentence(example.executed) if order == "plan_first" else ""
            )
    found = world_model_metrics(episodes)
    assert found["wm/format_rate"] == 1.0 and ("wm/prediction_em" in found) == (
        order != "no_prediction"
    )


def test_a_plan_is_corrected_to_what_was_executed_and_other_thoughts_stay():
    state = "goal (G) is at (0,0)"

    def response(_):
        return world_model_response(
            state, " The goal is up. I do Up, then jump. ", state, "Up || jump", order="plan_first"
        )

    (episode, *_) = play(
        groups(1, 1),
        ScriptedEngine(response),
        mode="add_worldmodel",
        response_format="plan_first",
        max_turn=1,
    )
    (example,), _ = episode_examples(episode, action_sep="||")
    assert (
        parse_response(example.response, mode="add_worldmodel").think == "The goal is up. I do Up."
    )

"""The controls of the data: believed states and random coordinates."""

import re
from dataclasses import replace

import pytest
from worldmodel_examples import make_episode, make_turn, response_to

from spa.errors import DataError
from spa.formats.registry import parse_response
from spa.worldmodel.examples import episode_examples
from spa.worldmodel.states import predicted_states, random_coordinates, with_states

S0 = "Player (P) is at (1,2); holes (O) are at (4,4) (3,1)."
S1 = "Player (P) is at (1,1); holes (O) are at (4,4) (3,1)."
S2 = "Player (P) is at (2,1); holes (O) are at (4,4) (3,1)."


def examples_of(state_texts=(S0, S1, S2)):
    first, second, third = state_texts
    turns = [
        make_turn(
            response_to("I see A", "I foresee B", "Left || Nonsense"),
            state=first,
            next_state=second,
        ),
        make_turn(
            response_to("I see C", "I foresee D", "Down"),
            state=second,
            next_state=third,
            executed=("Down",),
        ),
    ]
    return episode_examples(make_episode(turns), action_sep="||")[0]


def test_truth_is_left_alone():
    assert with_states(examples_of(), "ground_truth", seed=0) == examples_of()


def test_believed_states_stand_again_in_responses_and_histories_and_the_answer_stays_corrected():
    first, second = with_states(examples_of(), "model", seed=0)
    parsed = parse_response(first.response, mode="add_worldmodel")
    assert (parsed.observation, parsed.prediction, parsed.actions) == (
        "I see A",
        "I foresee B",
        ("Left",),
    )
    assert second.prompt[2]["content"] == first.response
    # what is shown stays true
    assert S0 in second.prompt[1]["content"] and S1 in second.prompt[3]["content"]
    assert (first.state, first.next_state) == (S0, S1)


def test_examples_without_a_record_of_beliefs_are_refused():
    with pytest.raises(DataError, match="turn 0"):
        predicted_states([replace(examples_of()[0], observed=None)])


def test_random_coordinates_keep_the_format_and_nothing_else():
    first, second = with_states(examples_of(), "random_coords", seed=0)
    for example in (first, second):
        parsed = parse_response(example.response, mode="add_worldmodel")
        assert parsed.well_formed
        for text in (parsed.observation, parsed.prediction):
            assert text is not None
            assert re.sub(r"\d", "#", text) == re.sub(r"\d", "#", S0)
            assert {int(number) for number in re.findall(r"\d+", text)} <= {1, 2, 3, 4}
            assert text not in (S0, S1, S2)
    assert second.prompt[2]["content"] == first.response
    assert S0 in second.prompt[1]["content"]
    assert random_coordinates(examples_of(), seed=0) == [first, second]
    assert random_coordinates(examples_of(), seed=1) != [first, second]


def test_drawings_and_digits_stay():
    grid = "P_\n_G\nFilled cells are (1,2)=3; empty cells are at (2,2) (1,1)."
    example = random_coordinates(examples_of((grid, grid, grid)), seed=3)[0]
    text = parse_response(example.response, mode="add_worldmodel").observation
    assert (
        text is not None and text.startswith("P_\n_G\nFilled cells are (") and ")=3; empty" in text
    )
    assert {int(number) for number in re.findall(r"[(,](\d+)", text)} <= {1, 2}


def test_states_without_coordinates_are_refused():
    with pytest.raises(DataError, match="no coordinates"):
        random_coordinates(examples_of(("P_", "_P", "P_")), seed=0)


def test_coordinates_are_spread_evenly():
    many = [
        replace(example, episode_id=str(i)) for i in range(300) for example in examples_of()[:1]
    ]
    found = [
        tuple(map(int, cell))
        for example in random_coordinates(many, seed=0)
        for cell in re.findall(r"\((\d+),(\d+)\)", example.response)
    ]
    counts = {cell: found.count(cell) for cell in set(found)}
    assert len(counts) == 16
    expected = len(found) / 16
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())

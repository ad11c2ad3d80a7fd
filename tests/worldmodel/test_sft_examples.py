from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worldmodel_examples import make_episode, make_turn, response_to

from spa.errors import ConfigError, DataError
from spa.seeds import derange
from spa.types import SFTExample, StopReason
from spa.worldmodel.examples import (
    corrected_messages,
    episode_examples,
    shuffle_next_states,
    split_by_puzzle,
)


def three_turns(name: str = "train/0", puzzle: str = "p0"):
    return make_episode(
        [
            make_turn(response_to("w0", "w1", "Left"), state=f"{name} s0", next_state=f"{name} s1"),
            make_turn(
                "<think>lost</think><answer>Left</answer>",
                state=f"{name} s1",
                next_state=f"{name} s2",
            ),
            make_turn(
                response_to("w2", "w3", "Up"),
                state=f"{name} s2",
                next_state=f"{name} s3",
                executed=("Up",),
            ),
        ],
        name=name,
        puzzle=puzzle,
    )


def test_examples_carry_the_corrected_history_and_count_what_was_dropped():
    episode = three_turns()
    examples, dropped = episode_examples(episode, action_sep="||")
    assert dropped == Counter(malformed=1)
    assert [example.turn for example in examples] == [0, 2]
    assert examples[0].prompt == episode.messages[:2]
    assert examples[0].response == response_to("train/0 s0", "train/0 s1", "Left")
    assert [
        message["content"] for message in examples[1].prompt if message["role"] == "assistant"
    ] == [
        examples[0].response,
        "<think>lost</think><answer>Left</answer>",
    ]
    assert [message for message in examples[1].prompt if message["role"] == "user"] == [
        message for message in episode.messages if message["role"] == "user"
    ]
    assert examples[1].response == response_to("train/0 s2", "train/0 s3", "Up")
    assert (examples[1].predicted, examples[1].observed, examples[1].executed) == (
        "w3",
        "w2",
        ("Up",),
    )
    # the episode itself is as it was played
    assert episode.messages[2]["content"] == response_to("w0", "w1", "Left")


def test_corrected_messages_are_the_history_of_a_next_turn():
    episode = three_turns()
    examples, _ = episode_examples(episode, action_sep="||")
    assert corrected_messages(episode, action_sep="||") == (
        *examples[1].prompt,
        {"role": "assistant", "content": examples[1].response},
    )


def test_an_episode_that_failed_gives_no_examples():
    # A failed episode keeps no turns.
    failed = make_episode((), stop=StopReason.ERROR, error="step returned None")
    examples, dropped = episode_examples(failed, action_sep="||")
    assert examples == [] and dropped == Counter(episode_error=1)


def test_an_episode_without_its_messages_is_a_data_error():
    with pytest.raises(DataError, match="train/9 has 3 turns but only 0 assistant"):
        episode_examples(
            make_episode(three_turns().turns, name="train/9", messages=()), action_sep="||"
        )


def rows_of(puzzles) -> list[SFTExample]:
    return [
        example
        for i, p in enumerate(puzzles)
        for example in episode_examples(three_turns(f"e{i}", str(p)), action_sep="||")[0]
    ]


@given(st.lists(st.integers(0, 12), max_size=20), st.floats(0.01, 0.99), st.integers(0, 5))
def test_no_puzzle_is_on_both_sides(puzzles, fraction, seed):
    examples = rows_of(puzzles)
    train, val = split_by_puzzle(examples, val_fraction=fraction, seed=seed)
    train_puzzles, val_puzzles = (
        {example.puzzle_hash for example in train},
        {example.puzzle_hash for example in val},
    )
    assert not train_puzzles & val_puzzles
    assert len(train) + len(val) == len(examples)
    count = len(set(puzzles))
    if count >= 2:
        assert train and val
        assert len(val_puzzles) == min(max(round(fraction * count), 1), count - 1)
    else:
        assert not val
    again = split_by_puzzle(examples[::-1], val_fraction=fraction, seed=seed)
    assert {example.puzzle_hash for example in again[1]} == val_puzzles


@given(st.sets(st.integers(0, 12)), st.sets(st.integers(0, 20)), st.integers(0, 5))
def test_puzzles_of_earlier_rounds_keep_their_side(early, late, seed):
    sides = [
        {example.puzzle_hash for example in part}
        for part in split_by_puzzle(rows_of(early), val_fraction=0.2, seed=seed)
    ]
    both = rows_of(early | late)
    train, val = split_by_puzzle(
        both, val_fraction=0.2, seed=seed, trained=sides[0], validated=sides[1]
    )
    assert sides[0] <= {example.puzzle_hash for example in train} and sides[1] <= {
        example.puzzle_hash for example in val
    }
    assert len(train) + len(val) == len(both)


def test_another_seed_splits_otherwise():
    examples = rows_of(range(40))
    sides = {
        frozenset(
            example.puzzle_hash
            for example in split_by_puzzle(examples, val_fraction=0.2, seed=s)[1]
        )
        for s in range(4)
    }
    assert len(sides) == 4 and {len(side) for side in sides} == {8}


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, float("nan")])
def test_an_impossible_fraction_is_refused(fraction):
    with pytest.raises(ConfigError, match="val_fraction"):
        split_by_puzzle([], val_fraction=fraction, seed=0)


def test_shuffling_moves_only_predictions():
    examples = rows_of(range(6))
    shuffled = shuffle_next_states(examples, 3)
    swapped = {}
    for example, new in zip(examples, shuffled, strict=True):
        head, tail = example.response.split(example.next_state)
        assert new.response.startswith(head) and new.response.endswith(tail)
        swapped[example.next_state] = new.response[len(head) : len(new.response) - len(tail)]
        assert new.extra.pop("shuffled") is True
        assert (new.next_state, new.state, new.extra, new.turn) == (
            example.next_state,
            example.state,
            example.extra,
            example.turn,
        )
    assert sorted(swapped) == sorted(swapped.values())
    assert all(true != false for true, false in swapped.items())
    for first, second in zip(shuffled[::2], shuffled[1::2], strict=True):
        history = [
            message["content"] for message in second.prompt if message["role"] == "assistant"
        ]
        assert history == [first.response, "<think>lost</think><answer>Left</answer>"]
        assert [m for m in second.prompt if m["role"] == "user"] == [
            m for m in examples[shuffled.index(second)].prompt if m["role"] == "user"
        ]
    assert "w1" not in examples[0].response and examples == rows_of(range(6))
    assert (
        shuffle_next_states(examples, 3)
        == shuffle_next_states(examples, 3)
        != shuffle_next_states(examples, 4)
    )


def test_states_stay_within_their_environment():
    examples = rows_of(range(4))
    other = make_episode(three_turns("lake").turns, name="lake", tag="FrozenLake")
    mixed = examples + episode_examples(other, action_sep="||")[0]
    for example in shuffle_next_states(mixed, 0):
        assert ("lake s" in example.response) == (example.tag == "FrozenLake")


def test_shuffling_unfiltered_examples_says_what_to_do():
    example = rows_of([1])[0]
    broken = replace(example, response="no blocks")
    with pytest.raises(DataError, match=r"e0, turn 0.*spa data filter"):
        shuffle_next_states([broken], 0)


@given(st.lists(st.sampled_from("abcd"), max_size=30), st.integers(0, 3))
def test_derangement_keeps_as_few_values_in_place_as_can_be(values, seed):
    donors = derange(values, np.random.default_rng(seed))
    assert sorted(donors) == list(range(len(values)))
    fixed = sum(values[i] == values[j] for i, j in enumerate(donors))
    most_common = max(Counter(values).values(), default=0)
    assert fixed == max(0, 2 * most_common - len(values))


def test_derangement_is_no_rule_from_text_to_text():
    values = list("abcd") * 50
    donors = derange(values, np.random.default_rng(0))
    assert len({(value, values[j]) for value, j in zip(values, donors, strict=True)}) == 12

"""World modelling as a reward, by hand."""

import pytest
from worldmodel_examples import make_episode, make_turn, response_to

from spa.worldmodel.accuracy import prediction_score, with_world_model_reward


def test_reward_by_hand():
    turns = [
        # One of four cells changes; the prediction changes two, one of them rightly: F1 = 2*1 / (1+2).
        make_turn(response_to("ABCD", "ABXY", "Left"), state="ABCD", next_state="ABXD"),
        make_turn(response_to("ABXX", "AB", "Left"), state="ABCD", next_state="ABCD"),
        make_turn("no format", state="ABCD", next_state="ABCD", executed=()),
    ]
    (episode,) = with_world_model_reward([make_episode(turns)], observation=0.5, prediction=2.0)
    assert [turn.reward for turn in episode.turns] == pytest.approx(
        [-0.1 + 0.5 * 1.0 + 2.0 * 2 / 3, -0.1 + 0.5 * 0.5, -0.1]
    )


def test_copying_the_last_state_is_paid_nothing_whether_it_is_true_or_not():
    """A policy that predicts the state it sees would win a share of right cells: most cells never change."""
    turns = [
        make_turn(response_to("ABCD", "ABCD", "Left"), state="ABCD", next_state="ABCX"),
        make_turn(response_to("ABCX", "ABCX", "Left"), state="ABCX", next_state="ABCX"),
    ]
    (episode,) = with_world_model_reward([make_episode(turns)], observation=0.0, prediction=1.0)
    assert [turn.reward for turn in episode.turns] == [-0.1, -0.1]


def test_no_weight_changes_nothing():
    episodes = [make_episode([make_turn(response_to("A", "B", "Left"))])]
    assert with_world_model_reward(episodes, observation=0.0, prediction=0.0) == episodes


def test_a_threshold_pays_in_full_or_nothing():
    assert [prediction_score(f1, None) for f1 in (0.0, 0.5, 1.0)] == [0.0, 0.5, 1.0]
    # Distances .5 and .2 are not below .2; distance .1 is.
    assert [prediction_score(f1, 0.2) for f1 in (0.5, 0.8, 0.9, 1.0)] == [0.0, 0.0, 1.0, 1.0]
    # a copy of the last state, even at the widest threshold
    assert prediction_score(0.0, 1.0) == 0.0


def test_standing_still_is_not_within_any_threshold():
    turns = [
        # nothing changed, and it says so
        make_turn(response_to("ABCX", "ABCX", "Left"), state="ABCX", next_state="ABCX"),
        make_turn(response_to("ABCD", "ABXD", "Left"), state="ABCD", next_state="ABXD"),
        make_turn(response_to("ABCD", "ABXY", "Left"), state="ABCD", next_state="ABXD"),  # F1 = 2/3
    ]
    (episode,) = with_world_model_reward(
        [make_episode(turns)], observation=0.0, prediction=2.0, within=0.3
    )
    assert [turn.reward for turn in episode.turns] == pytest.approx([-0.1, 1.9, -0.1])

"""World modelling as a reward, by hand."""

import pytest
from worldmodel_examples import make_episode, make_turn, reply

from spa.worldmodel.online import with_world_model_reward


def test_reward_by_hand():
    turns = [
        # One of four cells changes; the prediction changes two, one of them rightly: F1 = 2*1 / (1+2).
        make_turn(reply("ABCD", "ABXY", "Left"), state="ABCD", next_state="ABXD"),
        make_turn(reply("ABXX", "AB", "Left"), state="ABCD", next_state="ABCD"),
        make_turn("no format", state="ABCD", next_state="ABCD", executed=()),
    ]
    (episode,) = with_world_model_reward([make_episode(turns)], observation=0.5, prediction=2.0)
    assert [turn.reward for turn in episode.turns] == pytest.approx(
        [-0.1 + 0.5 * 1.0 + 2.0 * 2 / 3, -0.1 + 0.5 * 0.5, -0.1]
    )


def test_copying_the_last_state_is_paid_nothing_whether_it_is_true_or_not():
    """A policy that predicts the state it sees would win a share of right cells: most cells never change."""
    turns = [
        make_turn(reply("ABCD", "ABCD", "Left"), state="ABCD", next_state="ABCX"),
        make_turn(reply("ABCX", "ABCX", "Left"), state="ABCX", next_state="ABCX"),
    ]
    (episode,) = with_world_model_reward([make_episode(turns)], observation=0.0, prediction=1.0)
    assert [turn.reward for turn in episode.turns] == [-0.1, -0.1]


def test_no_weight_changes_nothing():
    episodes = [make_episode([make_turn(reply("A", "B", "Left"))])]
    assert with_world_model_reward(episodes, observation=0.0, prediction=0.0) == episodes

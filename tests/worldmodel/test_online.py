"""World modelling as a reward, by hand."""

import pytest
from worldmodel_examples import make_episode, make_turn, reply

from spa.worldmodel.online import with_world_model_reward


def test_reward_by_hand():
    turns = [
        make_turn(reply("ABCD", "ABXX", "Left"), state="ABCD", next_state="ABCD"),
        make_turn("no format", state="ABCD", next_state="ABCD", executed=()),
    ]
    (episode,) = with_world_model_reward([make_episode(turns)], observation=0.5, prediction=2.0)
    assert [turn.reward for turn in episode.turns] == pytest.approx([-0.1 + 0.5 * 1.0 + 2.0 * 0.5, -0.1])


def test_no_weight_changes_nothing():
    episodes = [make_episode([make_turn(reply("A", "B", "Left"))])]
    assert with_world_model_reward(episodes, observation=0.0, prediction=0.0) == episodes

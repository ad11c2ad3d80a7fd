import importlib.util

import pytest

from spa.envs.pool import group_specs
from spa.envs.registry import make_env
from spa.policies.scripted import random_engine
from spa.prompts.render import Prompter
from spa.rollout.loop import collect
from spa.types import SamplingParams, StopReason
from tests.bridges.conformance import failures

if importlib.util.find_spec("pettingzoo") is None or importlib.util.find_spec("pygame") is None:
    pytest.skip("make test-extra NAME=bridges", allow_module_level=True)


@pytest.mark.parametrize("task", ["tictactoe_v3", "connect_four_v3"])
def test_board_games_conform(task):
    assert failures(f"pettingzoo:{task}", steps=20) == []


def test_a_row_of_three_wins_for_one_and_loses_for_the_other():
    env = make_env("pettingzoo:tictactoe_v3")
    assert env.reset(seed=0)[0] == "...\n...\n...\nX is to move."
    for move in ("Row 1 Column 1", "Row 2 Column 1", "Row 1 Column 2", "Row 2 Column 2"):
        env.step(env.to_action(move))
    shown, reward, over, _, info = env.step(env.to_action("row 1 column 3"))
    assert shown == "XXX\nOO.\n...\nX has won."
    assert (reward, over, info["rewards"], info["successes"]) == (
        1.0,
        True,
        [1.0, -1.0],
        [True, False],
    )


def test_a_full_column_is_no_legal_action_and_changes_nothing():
    env = make_env("pettingzoo:connect_four_v3")
    env.reset(seed=0)
    for _ in range(6):
        env.step(env.to_action("Column 3"))
    before = env.state_text("grid")
    assert "Column 3" not in env.legal_actions()
    assert (
        env.step(env.to_action("Column 3"))[4]["action_is_valid"] is False
        and env.state_text("grid") == before
    )


def test_a_policy_plays_both_seats():
    specs = group_specs(
        "train", base_seed=0, step=0, tags=["Four"], n_groups=[2], group_size=2, self_play=["Four"]
    )
    episodes = collect(
        specs,
        make_env=lambda tag: make_env("pettingzoo:connect_four_v3"),
        prompters={"Four": Prompter(max_turn=25, max_actions_per_turn=1, max_actions_per_traj=25)},
        template=None,
        engine=random_engine(None, max_actions=1),
        sampling=SamplingParams(),
        format_penalty=-0.1,
        max_model_len=10**6,
    )
    assert [episode.seat for episode in episodes] == [0, 0, 1, 1]
    assert [a.score + b.score for a, b in zip(episodes[:2], episodes[2:], strict=True)] == [
        0.0,
        0.0,
    ]
    assert all(episode.stop in (StopReason.SUCCESS, StopReason.FAILURE) for episode in episodes)

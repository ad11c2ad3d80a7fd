import importlib.util

import pytest

from spa.envs.registry import make_env
from tests.bridges.conformance import failures

if importlib.util.find_spec("textworld") is None:
    pytest.skip("make test-extra NAME=bridges", allow_module_level=True)


def test_challenges_conform():
    assert failures("textworld:tw-treasure_hunter", {"level": 2}, steps=4) == []


def test_the_walkthrough_wins_and_pays_all_in_all_one():
    env = make_env("textworld:tw-simple")
    env.reset(seed=1)
    results = [env.step(command) for command in env.expert_actions(50)]
    assert results[-1][4]["success"] and sum(result[1] for result in results) == pytest.approx(1)


def test_what_is_in_sight_is_shown_and_all_facts_can_be_asked_for():
    env = make_env("textworld:tw-simple", {"know": "facts"})
    shown, _ = env.reset(seed=1)
    assert shown.startswith("Room: bedroom\nHere: antique trunk (closed); chest drawer (closed)")
    assert "through wooden door (locked)" in shown and "old key" not in shown
    assert "in(old key, chest drawer)" in env.world_state_text("grid")
    assert "[old key]" in env.step("open chest drawer")[0]


def test_commands_that_are_not_admissible_change_nothing():
    env = make_env("textworld:tw-simple")
    before, _ = env.reset(seed=1)
    shown, _, _, _, info = env.step("go east")
    assert shown == before and not info["action_is_valid"]


def test_a_copy_goes_its_own_way():
    env = make_env("textworld:tw-simple")
    before, _ = env.reset(seed=1)
    twin = env.clone()
    twin.step("open chest drawer")
    assert env.state_text("grid") == before != twin.state_text("grid")


def test_the_cooking_game_tells_its_recipe():
    env = make_env("textworld:tw-cooking")
    env.reset(seed=1)
    assert "Ingredients" in env.instruction("grid")

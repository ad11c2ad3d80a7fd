import importlib.util

import pytest

from spa.envs.branch import Past, branch
from spa.envs.registry import make_env
from tests.bridges.conformance import failures

if importlib.util.find_spec("textarena") is None:
    pytest.skip("make test-extra NAME=bridges", allow_module_level=True)


@pytest.mark.parametrize("task", ["GuessTheNumber-v0", "TowerOfHanoi-v0", "TicTacToe-v0"])
def test_games_of_one_and_of_two_conform(task):
    assert failures(f"textarena:{task}", steps=12) == []


def test_a_number_is_found_and_that_is_a_success():
    env = make_env("textarena:GuessTheNumber-v0")
    env.reset(seed=3)
    hidden = env.match.game.state.game_state["game_number"]
    _, reward, over, _, info = env.step(f"[{hidden}]")
    assert (reward, over, info["success"]) == (1.0, True, True) and "Game over." in env.state_text(
        "grid"
    )


def test_a_move_that_is_not_valid_changes_nothing_however_often():
    env = make_env("textarena:TicTacToe-v0")
    before, _ = env.reset(seed=0)
    for _ in range(4):
        shown, reward, over, _, info = env.step("[99]")
        assert (shown, reward, over, info["action_is_valid"]) == (before, 0.0, False, False)


def test_listed_moves_are_the_legal_actions_and_the_opponent_answers():
    env = make_env("textarena:TicTacToe-v0")
    env.reset(seed=0)
    assert len(env.legal_actions()) == 9
    env.step(env.legal_actions()[0])
    assert len(env.legal_actions()) == 7


def test_the_opponent_moves_by_the_noise_seed():
    env = make_env("textarena:TicTacToe-v0")

    def game(noise):
        env.reset(seed=0, options={"noise_seed": noise})
        return [env.step(f"[{cell}]")[0] for cell in (4, 0)]

    assert game(1) == game(1) and len({tuple(game(noise)) for noise in range(6)}) > 1


def test_a_copy_with_other_noise_meets_another_opponent():
    env = make_env("textarena:TicTacToe-v0")
    env.reset(seed=0)
    past = Past(make=lambda: env, seed=0, options={}, actions=[])
    states = {branch(env, past, noise).step("[4]")[0] for noise in range(8)}
    assert len(states) > 1 and len(env.legal_actions()) == 9


def test_the_games_own_record_can_be_what_should_be_known():
    env = make_env("textarena:GuessTheNumber-v0", {"know": "game_state"})
    env.reset(seed=3)
    assert "game_number" in env.world_state_text("grid") and "game_number" not in env.state_text(
        "grid"
    )

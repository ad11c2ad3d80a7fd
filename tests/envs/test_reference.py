import numpy as np
import pytest

from spa.envs.frozen_lake import FrozenLake
from spa.envs.reference import look_ahead, reference_success, walk
from spa_games.bandit import Bandit


def lake(board: str, **options) -> FrozenLake:
    env = FrozenLake(size=board.count("\n") + 1, is_slippery=False, **options)
    env.reset(seed=0, options={"board": board})
    return env


def actions(policy, env, count=40):
    rng = np.random.default_rng(0)
    return {policy(env, rng) for _ in range(count)}


def test_the_walk_follows_the_distance_and_ignores_holes():
    assert actions(walk, lake("P__\n___\n__G")) == {"Right", "Down"}
    assert actions(walk, lake("PO_\n___\n__G")) == {"Right", "Down"}
    assert actions(walk, lake("__P\n___\n__G")) == {"Down"}


def test_the_walk_uses_the_labels_meanings():
    env = lake("PG\n__", action_lookup={1: "Right", 2: "Down", 3: "Left", 4: "Up"})
    assert actions(walk, env) == {"Right"}


def test_look_ahead_avoids_holes_and_takes_the_goal():
    assert actions(look_ahead, lake("PO_\n___\n__G")) == {"Down"}
    assert actions(look_ahead, lake("___\n__P\n__G")) == {"Down"}
    # Behind the hole it must first walk away, which it never does.
    trap = lake("POG\n_O_\n___")
    assert not reference_success(trap, "look_ahead", 10, seed=0)


def test_look_ahead_leaves_the_game_as_it_is():
    env = lake("PO_\n___\n__G")
    before = env.state_text("grid")
    look_ahead(env, np.random.default_rng(0))
    assert env.state_text("grid") == before and env.steps == 0


def test_a_policy_that_a_game_does_not_offer_is_not_available():
    env = Bandit(lo_arm_name="Phoenix", hi_arm_name="Dragon")
    env.reset(seed=0)
    assert reference_success(env, "walk", 1, seed=0) is None
    assert reference_success(env, "look_ahead", 1, seed=0) is None
    assert reference_success(env, "random", 1, seed=0) in (True, False)


@pytest.mark.parametrize("name", ["random", "walk", "look_ahead"])
def test_a_seed_fixes_the_play(name):
    found = []
    for _ in range(2):
        wins = []
        for seed in range(20):
            env = FrozenLake(is_slippery=True)
            env.reset(seed=seed)
            wins.append(reference_success(env, name, 10, seed=seed))
        found.append(wins)
    assert found[0] == found[1]
    assert any(found[0])

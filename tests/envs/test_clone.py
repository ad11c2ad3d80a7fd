"""A copy of a running game: the same actions lead to the same states, and the original notices nothing."""

import numpy as np
import pytest

from spa.config.load import load_config
from spa.envs.base import TextEnv
from spa.envs.branch import Past, branch
from spa.envs.frozen_lake import FrozenLake
from spa.envs.limits import EnvFault
from spa.envs.registry import make_env
from spa_author.checker import check
from spa_games.sokoban import Sokoban

TAGS = load_config("base").custom_envs


def wander(env: TextEnv, seed: int, steps: int = 8) -> list:
    rng, story = np.random.default_rng(seed), []
    for _ in range(steps):
        text = env.random_action(rng)
        action = env.to_action(text)
        assert action is not None
        story.append((text, *env.step(action)))
        if story[-1][3] or story[-1][4]:
            break
    return story


@pytest.mark.parametrize("tag", TAGS)
def test_every_environment_of_ours_is_copied_in_the_middle_of_a_game(tag):
    env = make_env(TAGS[tag].env_type, TAGS[tag].env_config)
    for seed in range(5):
        env.reset(seed=seed, options={"noise_seed": seed})
        wander(env, seed, steps=2)
        before = env.state_text("grid_and_coords")
        twin, other = env.clone(), env.clone()
        told = wander(twin, seed + 1)
        assert env.state_text("grid_and_coords") == other.state_text("grid_and_coords") == before
        assert wander(env, seed + 1) == told == wander(other, seed + 1)


def test_a_copys_own_noise_differs_and_leaves_the_originals_alone():
    env = FrozenLake(size=8, p=1.0)
    env.reset(seed=1, options={"noise_seed": 5})
    env.step(1)
    ways = {tuple(row[1] for row in wander(env.clone(noise_seed=seed), 0)) for seed in range(6)}
    assert len(ways) > 1
    assert wander(env.clone(noise_seed=3), 0) == wander(env.clone(noise_seed=3), 0)
    assert wander(env.clone(), 0) == wander(env, 0)


class Uncopied(Sokoban):
    changes = None


class Shared(Sokoban):
    changes = ("_grid_chars",)  # forgets the boxes


def test_a_game_that_cannot_be_copied_is_played_again():
    env = Uncopied()
    env.reset(seed=3, options={"noise_seed": 0})
    done = [env.to_action(text) for text in ("Up", "Left", "Down")]
    for action in done:
        env.step(action)
    with pytest.raises(NotImplementedError):
        env.clone()
    twin = branch(env, Past(make=Uncopied, seed=3, options={"noise_seed": 0}, actions=done))
    assert twin.state_text("grid") == env.state_text("grid") and wander(twin, 0) == wander(env, 0)
    with pytest.raises(EnvFault, match="leads to another state"):
        branch(twin, Past(make=Uncopied, seed=4, options={}, actions=[]))


@pytest.mark.parametrize(("kind", "ok"), [(Sokoban, True), (Uncopied, True), (Shared, False)])
def test_the_checker_finds_a_copy_that_shares_what_changes(kind, ok):
    found = {
        finding.check: finding
        for finding in check(lambda: kind(dim_x=5, dim_y=5), seeds=8, steps=20)
    }
    assert found["a clone is independent of its original"].ok is ok

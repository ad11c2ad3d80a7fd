"""Random play draws legal actions: from the state that each action of a turn meets, not from the first one."""

from collections import Counter

import numpy as np
import pytest
from each_once import DIGITS, EachOnce
from helpers.play import groups, play

from spa.envs.base import TextEnv
from spa.envs.registry import make_env
from spa.envs.workers import EnvWorkers
from spa.errors import ConfigError
from spa.policies.scripted import random_engine
from spa.prompts.render import Prompter
from spa.worldmodel.branches import counterfactual_examples


class NoCopies(EachOnce):
    changes = None


class FreeText(EachOnce):
    def action_names(self) -> tuple[str, ...]:
        return ()


def validity(cls: type[TextEnv]) -> Counter[bool]:
    episodes = play(groups(6, 2), random_engine(max_actions=4), make=lambda tag: cls(), max_turn=3)
    assert not any(episode.error for episode in episodes)
    return Counter(
        info["action_is_valid"]
        for episode in episodes
        for turn in episode.turns
        for info in turn.infos
    )


def test_every_action_of_a_random_turn_is_legal_when_it_is_taken():
    counts = validity(EachOnce)
    assert counts[False] == 0 and counts[True] > 40


def test_a_game_that_cannot_be_copied_is_played_by_the_first_state_of_the_turn():
    assert validity(NoCopies)[False] > 0


def test_a_plan_leaves_the_game_as_it_is():
    env = EachOnce()
    env.reset(seed=0)
    plan = env.random_plan(np.random.default_rng(0), 6)
    assert sorted(plan) == list(DIGITS) and env.named == []


def test_plans_that_go_on_after_the_end_are_as_long_as_was_asked_for():
    env = EachOnce()
    env.reset(seed=0)
    for digit in "012":
        env.step(digit)
    plan = env.random_plan(np.random.default_rng(0), 5)
    assert sorted(plan[:3]) == list("345") and set(plan[3:]) <= set("345")


def test_branches_try_plans_that_are_legal_to_their_end():
    (episode,) = play(
        groups(1, 1),
        random_engine(max_actions=2),
        make=lambda tag: EachOnce(),
        mode="add_worldmodel",
    )
    prompter = Prompter(mode="add_worldmodel", state_text="coords", max_actions_per_turn=3)
    examples = counterfactual_examples(episode, make=EachOnce, prompter=prompter, plans=6)
    assert examples and all(
        len(set(example.executed)) == len(example.executed) for example in examples
    )


@pytest.mark.parametrize(
    "env_type", ["frozen_lake", "sudoku", "countdown", "sokoban", "rubiks_cube"]
)
def test_where_every_action_is_legal_a_plan_is_what_single_draws_are(env_type):
    env, twin = np.random.default_rng(7), np.random.default_rng(7)
    game = make_env(env_type)
    for seed in range(3):
        game.reset(seed=seed)
        singles = tuple(game.random_action(twin) for _ in range(12))
        assert game.random_plan(env, 12) == singles
    assert env.integers(2**31) == twin.integers(2**31)


def test_a_game_in_another_process_draws_the_same_plan():
    workers, local = EnvWorkers(1, timeout_s=60), make_env("game_2048")
    remote = workers.make("game_2048", {})
    here, there = np.random.default_rng(2), np.random.default_rng(2)
    for env in (local, remote):
        env.reset(seed=3)
    plans = [local.random_plan(here, 5) for _ in range(4)]
    assert [remote.random_plan(there, 5) for _ in range(4)] == plans
    assert here.integers(2**31) == there.integers(2**31)
    workers.close()


def test_a_walk_in_another_process_draws_the_same_ties():
    workers, local = EnvWorkers(1, timeout_s=60), make_env("frozen_lake", {"size": 3})
    remote = workers.make("frozen_lake", {"size": 3})
    here, there = np.random.default_rng(2), np.random.default_rng(2)
    for env in (local, remote):
        env.reset(seed=3)
    walk = [local.greedy_action(here) for _ in range(20)]
    assert [remote.greedy_action(there) for _ in range(20)] == walk
    assert here.integers(2**31) == there.integers(2**31)
    workers.close()


def test_free_text_actions_are_drawn_from_the_legal_ones_where_they_are_listed():
    assert validity(FreeText)[False] == 0


def test_a_game_of_free_text_that_lists_nothing_is_told_what_to_write():
    class Mute(FreeText):
        def legal_actions(self) -> tuple[str, ...]:
            return ()

    with pytest.raises(
        ConfigError, match=r"Mute: random_action finds no action.*Implement random_action"
    ):
        validity(Mute)

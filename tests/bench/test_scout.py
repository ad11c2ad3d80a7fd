"""Tabular Q-learning: values by hand, boards that it may try, and boards that it may not."""

import itertools
import json

import numpy as np
import pytest
from helpers.runs import small_config

from spa.envs.frozen_lake import FrozenLake
from spa.errors import ConfigError
from spa.policies.mixed import MixedEngine
from spa.recipes import selfplay, setup
from spa.recipes.policies import find_target, open_target
from spa.run.manifest import SUMMARY
from spa.worldmodel.sft_files import read_examples
from spa_bench.q_learning import validation as q_learning
from spa_bench.q_learning.scout import (
    GAMMA,
    STEPS,
    Scout,
    Values,
    learn,
    require_copies,
    table_engine,
)
from spa_games.metamathqa import MetamathQA


def lake(seed: int = 3) -> FrozenLake:
    env = FrozenLake(size=3, p=0.8, is_slippery=False)
    env.reset(seed=seed)
    return env


def test_values_are_discounted_steps_to_the_goal():
    start, values = lake(), Values()
    learn(
        values,
        (start.clone(n) for n in itertools.count()),
        steps=5000,
        most=10,
        rng=np.random.default_rng(0),
    )
    steps = start.optimal_steps()
    assert steps is not None
    highest = max(value for value, _ in values[start.state_text("grid")].values())
    assert highest == pytest.approx(GAMMA ** (steps - 1), abs=0.02)
    assert sum(visits for known in values.values() for _, visits in known.values()) == 5000


def test_nothing_is_learnt_from_games_without_steps():
    values: Values = {}
    learn(values, iter([lake()]), steps=0, most=10, rng=np.random.default_rng(0))
    assert all(visits == 0 for known in values.values() for _, visits in known.values())


def test_what_the_scout_may_try_it_solves_and_a_table_of_other_boards_does_not(tmp_path):
    cfg = small_config("none", tmp_path, "es_manager.val.env_groups=16", "agent_proxy.max_turn=5")
    found = q_learning.validate_tables(cfg, steps=3000)
    assert found is not None and found["steps"] == 3000 and found["tries"] == STEPS
    assert found[q_learning.SAME] > 0.95 > found[q_learning.OTHER] + 0.1
    assert found == q_learning.validate_tables(cfg, steps=3000)


def test_members_of_a_group_share_a_table_and_episodes_are_forgotten(tmp_path):
    cfg = small_config("none", tmp_path)
    player, scout = setup.make_worker(cfg, None, mode="base"), Scout(max_actions=3, most=10)
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=5, step=0)
    assert all(episode.success for episode in player.rollout(scout, specs, setup.val_sampling(cfg)))
    assert len(scout._tables) == len({spec.group for spec in specs}) and not scout._table_of


def test_a_table_plays_at_random_where_it_knows_nothing(tmp_path):
    cfg = small_config("none", tmp_path)
    player = setup.make_worker(cfg, None, mode="base")
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=5, step=0)
    episodes = player.rollout(table_engine({}, max_actions=3), specs, setup.val_sampling(cfg))
    assert all(len(turn.executed) == 1 for episode in episodes for turn in episode.turns)


def test_scout_data_are_examples_of_the_scouts_play(base, tmp_path):
    cfg = small_config(base, tmp_path, "generate.policy=q_learning", "generate.num_batches=1")
    out = selfplay.run_self_play(cfg)
    summary = json.loads((out / SUMMARY).read_text())
    assert summary["actions_elsewhere"] == STEPS * summary["puzzles"]  # what it tried is paid for
    examples = read_examples(out / selfplay.TRAIN_FILE)
    assert examples and all(example.success for example in examples)
    assert all(
        "<prediction>" in example.response and "unknown" not in example.response
        for example in examples
    )


def test_the_scout_shares_self_play_and_an_evaluation(base, tmp_path):
    cfg = small_config(base, tmp_path, "generate.mixture={q_learning: 1, random: 1}")
    engine = selfplay.selfplay_engine(cfg, setup.pick_device(cfg))
    assert isinstance(engine, MixedEngine) and any(
        isinstance(player, Scout) for player in engine.players
    )
    player = setup.make_worker(cfg, None, mode="base")
    found, _ = open_target(cfg, find_target("q_learning"), player, responses=tmp_path / "responses")
    assert isinstance(found, Scout)


def test_what_cannot_be_scouted_is_refused():
    env = MetamathQA()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"cannot be copied|lists its actions"):
        require_copies(env, "MetamathQA")


def test_a_game_of_two_players_is_refused():
    class TwoPlayers(FrozenLake):
        players = 2

    env = TwoPlayers(size=3, is_slippery=False)
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="needs a game of one player"):
        require_copies(env, "Nim")

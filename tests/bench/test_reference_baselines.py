import numpy as np

from spa.envs.frozen_lake import FrozenLake
from spa.envs.reference import reference_success
from spa.rollout.loop import puzzle_hash
from spa_bench.reference.labels import (
    Label,
    make_labels,
    nearest_neighbour,
    network,
    player_success,
    with_symmetries,
)
from spa_bench.reference.rules import count_table, single_candidate, table_success
from spa_games.sudoku import Sudoku


def lake(size=3) -> FrozenLake:
    return FrozenLake(size=size, is_slippery=False)


def test_labels_are_of_new_puzzles_and_right():
    env = lake()
    env.reset(seed=3)
    held_out = {puzzle_hash(env)}
    labels = make_labels(env, 60, cap=6, seed=0, held_out=held_out)
    assert len(labels) == 60
    for label in labels:
        env.reset(seed=0, options={"board": label.grid})
        assert env.expert_actions(1) == (label.action,)
        assert puzzle_hash(env) not in held_out


def test_symmetries_keep_best_actions_best():
    env = lake()
    for label in with_symmetries([Label("P_O\n__O\nO_G", "Right"), Label("_PO\n_OG\n___", "Left")]):
        env.reset(seed=0, options={"board": label.grid})
        steps = env.optimal_steps()
        env.step(label.action)
        assert env.optimal_steps() == steps - 1


def test_players_play_what_they_were_shown():
    labels = make_labels(lake(), 300, cap=6, seed=0, held_out=())
    for play in (nearest_neighbour(labels), network(labels, epochs=40, seed=0)):
        assert np.mean([play(label.grid) == label.action for label in labels]) > 0.95
        env = lake()
        wins = []
        for seed in range(60):
            env.reset(seed=seed)
            wins.append(player_success(env, play, 8))
        assert np.mean(wins) > 0.6


def test_a_table_counted_from_random_moves_solves_lakes():
    env = lake()
    table = count_table(env, 400, seed=0)
    env.reset(seed=1)
    assert table["00", "Right"] == "01" and table["00", "Left"] == "00"
    for seed in range(40):
        env.reset(seed=seed)
        steps = env.optimal_steps()
        assert table_success(env, table, 8) == (steps is not None and steps <= 8)


def test_single_candidates_solve_most_sudokus_and_stop_where_there_are_none():
    env = Sudoku(clues=8)
    wins = 0
    for seed in range(30):
        env.reset(seed=seed)
        while (action := single_candidate(env, None)) is not None:
            _, _, solved, _, info = env.step(action)
            assert info["action_is_effective"]
            wins += solved
    assert wins == 30
    assert single_candidate(lake(), None) is None


def test_reference_policies_play_the_rest_of_the_game():
    env = lake()
    env.reset(seed=0, options={"board": "P__\n___\n__G"})
    env.step("Right")
    assert reference_success(env, "walk", 3, seed=0)

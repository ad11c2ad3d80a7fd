"""FrozenLake and Sudoku solvers against figures worked by hand and against play."""

from itertools import product

import numpy as np
import pytest

from spa.envs.frozen_lake import FrozenLake
from spa.envs.frozen_lake_maps import Lake, moves
from spa.envs.solvers.frozen_lake import best_turn, shortest_path, values
from spa_games.sudoku import Sudoku

# The player at (0,0), the goal at (0,1), ice below.
SMALL = Lake(2, 0, 1, frozenset())


def test_values_by_hand():
    """One action: right or up reach the goal with 1/3. Two: up stays put otherwise, so 1/3 + 2/3 * 1/3 = 5/9; right
    would slip down to (1,0) with 1/3, from where one action cannot win.
    """
    table = values(SMALL, 1 / 3, 2)
    assert table[0] == (0.0, 1.0, 0.0, 0.0)
    assert table[1] == pytest.approx((1 / 3, 1.0, 0.0, 1 / 3))
    assert table[2][0] == pytest.approx(5 / 9)
    assert best_turn(SMALL, 1 / 3, 0, 2) == 3
    assert best_turn(SMALL, 1 / 3, 0, 0) is None and best_turn(SMALL, 1 / 3, 1, 5) is None


def best_by_enumeration(lake: Lake, rate: float, cell: int, limit: int) -> float:
    """The same values by a recursion over all actions and slips, without a table."""
    if cell == lake.goal or cell in lake.holes or limit == 0:
        return float(cell == lake.goal)
    slips = ((0, rate), (-1, (1 - rate) / 2), (1, (1 - rate) / 2))
    names = ("left", "down", "right", "up")
    return max(
        sum(
            weight
            * best_by_enumeration(
                lake, rate, moves(lake.size, names[(turn + slip) % 4])[cell], limit - 1
            )
            for slip, weight in slips
            if weight
        )
        for turn in range(4)
    )


@pytest.mark.parametrize("rate, seed", list(product([1 / 3, 0.8, 1.0], range(3))))
def test_values_against_enumeration(rate, seed):
    env = FrozenLake(size=3, success_rate=rate)
    env.reset(seed=seed)
    for cell in range(9):
        assert values(env.lake, rate, 4)[4][cell] == pytest.approx(
            best_by_enumeration(env.lake, rate, cell, 4)
        )


def test_best_play_reaches_its_value():
    """4,000 episodes of the best policy end well as often as value iteration says, within four deviations."""
    env = FrozenLake()
    env.reset(seed=3)
    expected = env.best_success(10)
    wins = 0
    for noise in range(4000):
        env.reset(seed=3, options={"noise_seed": noise})
        for left in range(10, 0, -1):
            actions = env.expert_actions(left)
            if not actions or env.step(actions[0])[2]:
                break
        wins += env.player == env.lake.goal
    assert abs(wins / 4000 - expected) < 4 * np.sqrt(expected * (1 - expected) / 4000)


def test_without_slips_the_shortest_way_is_played():
    env = FrozenLake(is_slippery=False)
    for seed in range(50):
        env.reset(seed=seed)
        steps = env.optimal_steps()
        assert (
            steps is not None
            and env.best_success(steps) == 1.0
            and env.best_success(steps - 1) == 0.0
        )
        actions = env.expert_actions(100)
        assert len(actions) == steps and len(env.expert_actions(1)) == 1
        assert [env.step(action)[2] for action in actions] == [False] * (steps - 1) + [True]
        assert env.expert_actions(5) == () and env.optimal_steps() == 0


def test_shortest_path_by_hand():
    # the wall of holes is passed below: down, down, right, right, up, up
    lake = Lake(3, 0, 2, frozenset({1, 4}))
    assert shortest_path(lake, 0) == 6
    assert shortest_path(lake, 1) is None
    assert shortest_path(Lake(3, 0, 8, frozenset({5, 7})), 0) is None


def test_sudoku_expert():
    env = Sudoku(clues=6)
    for seed in range(20):
        env.reset(seed=seed)
        assert (
            env.optimal_steps() == 10 and env.best_success(10) == 1.0 and env.best_success(9) == 0.0
        )
        assert len(env.expert_actions(3)) == 3
        assert [env.step(action)[2] for action in env.expert_actions(50)] == [False] * 9 + [True]
        assert env.optimal_steps() == 0 and env.expert_actions(5) == ()


def test_sudoku_expert_after_a_wrong_digit():
    env = Sudoku()
    # the first cells are 3, 1, 2
    env.reset(options={"board": "| . . . 4 | 4 2 1 3 | 2 3 4 . | . 4 . 2"})
    env.step("1,1,1")
    assert env.optimal_steps() is None
    (action,) = env.expert_actions(5)
    assert action == "1,1,3"
    env.step(action)
    assert env.optimal_steps() == 5

import math

import pytest
from contract import check_contract
from hypothesis import given
from hypothesis import strategies as st

from spa_games.game_2048 import ACTIONS, Game2048, can_move, slide, slide_left

TILES = st.sampled_from([0, 2, 4, 8, 16])
BOARDS = st.lists(st.lists(TILES, min_size=4, max_size=4).map(tuple), min_size=4, max_size=4).map(
    tuple
)
STUCK = ((2, 4, 2, 4), (4, 2, 4, 2), (2, 4, 2, 4), (4, 2, 4, 2))


def started(board, **options) -> Game2048:
    env = Game2048(**options)
    env.reset(seed=0)
    env.board = board
    return env


@pytest.mark.parametrize("options", [{}, {"reward": "log"}, {"size": 2, "target": 8}])
def test_contract(options):
    check_contract(lambda: Game2048(**options), steps=40)


@pytest.mark.parametrize(
    ("row", "slid", "earned"),
    [
        ((2, 2, 2, 2), (4, 4, 0, 0), 8),
        ((2, 2, 2, 0), (4, 2, 0, 0), 4),
        ((0, 4, 0, 4), (8, 0, 0, 0), 8),
        ((4, 2, 2, 0), (4, 4, 0, 0), 4),
        ((2, 4, 8, 16), (2, 4, 8, 16), 0),
        ((0, 0, 0, 0), (0, 0, 0, 0), 0),
    ],
)
def test_rows_by_hand(row, slid, earned):
    assert slide_left(row) == (slid, earned)


def test_directions_by_hand():
    board = ((2, 0, 0, 2), (0, 0, 0, 0), (2, 0, 4, 0), (0, 0, 4, 2))
    assert slide(board, "Up") == (((4, 0, 8, 4), (0,) * 4, (0,) * 4, (0,) * 4), 16)
    assert slide(board, "Down") == (((0,) * 4, (0,) * 4, (0,) * 4, (4, 0, 8, 4)), 16)
    assert slide(board, "Left") == (((4, 0, 0, 0), (0,) * 4, (2, 4, 0, 0), (4, 2, 0, 0)), 4)
    assert slide(board, "Right") == (((0, 0, 0, 4), (0,) * 4, (0, 0, 2, 4), (0, 0, 4, 2)), 4)


@given(BOARDS, st.sampled_from(ACTIONS))
def test_sliding_keeps_the_sum_and_is_stable_without_merges(board, direction):
    moved, earned = slide(board, direction)
    assert sum(map(sum, moved)) == sum(map(sum, board))
    assert earned <= sum(map(sum, board))
    if not earned:
        assert slide(moved, direction) == (moved, 0)


def test_rules_name_the_chance_of_a_four():
    for chance, text in ((0.1, "2 or seldom 4"), (1.0, "always 4"), (0.0, "always 2")):
        env = Game2048(four_chance=chance)
        env.reset(seed=0)
        assert f"a new tile, {text}, appears" in env.instruction("grid")


def test_start_is_two_tiles_and_later_tiles_are_noise():
    env = Game2048()
    boards = set()
    for noise in range(20):
        env.reset(seed=5, options={"noise_seed": noise})
        start = env.puzzle_text()
        assert sorted(tile for row in env.board for tile in row if tile) in ([2, 2], [2, 4], [4, 4])
        for name in ("Left", "Up", "Right"):
            env.step(name)
        boards.add(env.board)
        assert env.puzzle_text() == start
    assert len(boards) > 10


def test_rewards_by_hand():
    board = ((4, 4, 0, 0), (2, 2, 0, 0), (0,) * 4, (0,) * 4)
    assert started(board).step("Left")[1] == 12.0
    assert started(board, reward="log").step("Left")[1] == pytest.approx(0.1 * math.log2(13))


@pytest.mark.parametrize("reward", ["merge", "log"])
def test_a_move_that_changes_nothing_pays_the_penalty_under_both_rewards(reward):
    board = ((2, 0, 0, 0), (4, 0, 0, 0), (0,) * 4, (0,) * 4)
    env = started(board, reward=reward)
    _, paid, terminated, _, info = env.step("Left")
    assert (paid, terminated, env.board) == (-0.1, False, board)
    assert not info["action_is_valid"] and not info["action_is_effective"]


def test_the_rules_name_the_penalty():
    assert "changes nothing costs 0.1." in Game2048().instruction("grid")
    assert "changes nothing costs 0." in Game2048(invalid_penalty=0).instruction("grid")


def test_success_at_once_and_failure_when_stuck():
    board = ((1024, 1024, 0, 0), (0,) * 4, (0,) * 4, (0,) * 4)
    env = started(board)
    _, paid, terminated, _, info = env.step("Right")
    assert (paid, terminated, info["success"], info["largest_tile"]) == (2048.0, True, True, 2048)
    assert env.step("Down")[1:3] == (0.0, True)  # after the end nothing is paid
    assert not can_move(STUCK)
    _, paid, terminated, _, info = started(STUCK).step("Up")
    assert terminated and not info["success"] and paid == 0.0


def test_state_texts():
    env = started(((16, 0, 2, 0), (0,) * 4, (0, 2, 0, 0), (0, 0, 0, 128)))
    assert env.state_text("grid") == "16 _ 2 _\n_ _ _ _\n_ 2 _ _\n_ _ _ 128"
    assert env.state_text("coords").startswith(
        "128 at (3,3); 16 at (0,0); 2 at (0,2) (2,1); empty: (0,1) (0,3)"
    )
    assert "(3,3)" in env.instruction("coords") and "(3,3)" not in env.instruction("grid")

import numpy as np
import pytest
from contract import check_contract
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.prompts.render import Prompter
from spa_games.cube import ACTIONS, SOLVED, TURNS, is_solved, turn
from spa_games.rubiks_cube import RubiksCube
from spa_games.solvers import rubiks_cube as solver

WORDS = st.lists(st.sampled_from(ACTIONS), max_size=12)


def turned(word, cube=SOLVED):
    for label in word:
        cube = turn(cube, label)
    return cube


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_contract(depth):
    check_contract(lambda: RubiksCube(scramble_depth=depth), steps=25)


@pytest.mark.parametrize("mode", ["grid", "coords", "grid_and_coords"])
def test_prompts_name_the_colours_once(mode):
    env = RubiksCube()
    env.reset(seed=0)
    text = Prompter(state_text=mode).first_messages(env)[1]["content"]
    assert text.count("W white, O orange") == 1


def test_turns_by_hand():
    # A clockwise turn of the front takes up's lower row to right's left column, right's to down's upper row,
    # down's to left's right column, left's to up's lower row.
    assert turn(SOLVED, "F") == "WWOOOYOYGGGGWRWRBBBBRRYY"
    # A clockwise turn of the top takes front's upper row to the left.
    assert turn(SOLVED, "U") == "WWWWGGOORRGGBBRROOBBYYYY"
    # A clockwise turn of the right takes front's right column to the top.
    assert turn(SOLVED, "R") == "WGWGOOOOGYGYRRRRWBWBYBYB"


@pytest.mark.parametrize("label", ACTIONS)
def test_a_turn_moves_twelve_stickers_and_has_order_four(label):
    assert sorted(TURNS[label]) == list(range(24))
    assert sum(index != source for index, source in enumerate(TURNS[label])) == 12
    assert turned([label] * 4) == SOLVED and turned([label] * 2) != SOLVED
    assert turned([label[0], label[0] + "'"]) == SOLVED


def test_known_identities():
    assert turned(["R", "U", "R'", "U'"] * 6) == SOLVED
    assert turned(["R", "U", "R'", "U'"] * 3) != SOLVED
    # Opposite faces turned against each other turn the cube as a whole.
    assert turned(["R", "L'"]) != SOLVED and is_solved(turned(["R", "L'"]))
    assert not is_solved(turned(["R", "L"]))


@settings(max_examples=40, deadline=None)
@given(WORDS)
def test_solver_solves_and_never_needs_more_turns_than_the_scramble(word):
    cube = turned(word)
    solution = solver.solve(cube)
    assert is_solved(turned(solution, cube)) and len(solution) <= len(word)


def test_solver_agrees_with_a_plain_search_over_all_twelve_turns():
    level = {SOLVED}
    for _ in range(4):  # the 24 ways to hold a solved cube
        level |= {
            turned(pair, cube) for cube in level for pair in (["R", "L'"], ["U", "D'"], ["F", "B'"])
        }
    assert len(level) == 24
    seen = set(level)
    for depth in range(3):
        assert len(level) == 24 * [1, 6, 27][depth]
        assert all(solver.distance(cube) == depth for cube in sorted(level)[::5])
        level = {turn(cube, label) for cube in level for label in ACTIONS} - seen
        seen |= level


def test_number_of_positions_per_distance():
    # Positions of the 2x2 cube at 0, 1, 2, 3, 4 quarter turns, held fixed: the published counts.
    level, seen, counts = {SOLVED}, {SOLVED}, []
    for depth in range(5):
        counts.append(len(level))
        assert all(solver.distance(cube) == depth for cube in sorted(level)[:40])
        level = {turn(cube, label) for cube in level for label in solver.TURNS} - seen
        seen |= level
    assert counts == [1, 6, 27, 120, 534]


@pytest.mark.parametrize("depth", range(1, 7))
def test_scrambles_need_exactly_their_depth(depth):
    env = RubiksCube(scramble_depth=depth)
    for seed in range(10):
        env.reset(seed=seed)
        solution = env.expert_actions(20)
        assert len(solution) == depth == env.optimal_steps()
        assert (env.best_success(depth), env.best_success(depth - 1)) == (1.0, 0.0)
        for number, label in enumerate(solution, start=1):
            _, reward, terminated, truncated, info = env.step(label)
            assert (reward, terminated, info["success"]) == (
                (1.0, True, True) if number == depth else (0.0, False, False)
            )
            assert info["action_is_effective"] and not truncated
        assert env.step("U")[4]["action_is_valid"] is False


def test_unknown_turn_is_invalid_and_the_cap_truncates():
    env = RubiksCube(scramble_depth=2, max_steps=3)
    env.reset(seed=1)
    before = env.cube
    _, reward, terminated, truncated, info = env.step("M2")
    assert (reward, terminated, truncated, env.cube) == (0.0, False, False, before)
    assert info == {"action_is_valid": False, "action_is_effective": False, "success": False}
    env.step("?")
    assert env.step("?")[3] is True


def test_state_text():
    env = RubiksCube(scramble_depth=1)
    env.reset(seed=0)
    env.cube = turn(SOLVED, "F")
    assert env.state_text("grid") == (
        "Up (U): WW OO\nLeft (L): OY OY\nFront (F): GG GG\nRight (R): WR WR\nBack (B): BB BB\nDown (D): RR YY"
    )
    assert env.to_action(" u' ") == 2 and env.to_action("UU") is None
    rng = np.random.default_rng(0)
    assert {env.random_action(rng) for _ in range(300)} == set(ACTIONS)

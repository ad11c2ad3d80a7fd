import math
from itertools import product

import numpy as np
import pytest
from contract import check_contract

from spa.envs.cards import cards
from spa.errors import ConfigError
from spa_games.solvers.sudoku import solve
from spa_games.sudoku import Sudoku

# 12 of 16 digits; the empty cells hold 3 at (1,1), 1 at (4,1), 3 at (4,3), and 4 at (3,4).
BOARD = "| . 1 2 4 | 4 2 1 3 | 2 3 4 . | . 4 . 2"
FULL = ((3, 1, 2, 4), (4, 2, 1, 3), (2, 3, 4, 1), (1, 4, 3, 2))


def start(board: str = BOARD, **options) -> Sudoku:
    env = Sudoku(**options)
    env.reset(options={"board": board})
    return env


def all_solutions(rows: tuple[tuple[int, ...], ...]) -> int:
    """Solutions of a 4x4 board by trying every row that is a permutation: no code in common with the solver."""
    lines = [line for line in product(range(1, 5), repeat=4) if len(set(line)) == 4]
    fitting = [
        [line for line in lines if all(g in (0, v) for g, v in zip(row, line, strict=True))]
        for row in rows
    ]

    def right(board) -> bool:
        columns = all(len({row[col] for row in board}) == 4 for col in range(4))
        boxes = all(
            len({board[r + dr][c + dc] for dr in (0, 1) for dc in (0, 1)}) == 4
            for r in (0, 2)
            for c in (0, 2)
        )
        return columns and boxes

    return sum(right(board) for board in product(*fitting))


@pytest.mark.parametrize(
    "options", [{}, {"clues": 6, "state_text": "grid_and_coords"}, {"board_size": 9}]
)
def test_contract(options):
    check_contract(lambda: Sudoku(**options), steps=40)


def test_texts():
    env = start()
    assert env.state_text("grid") == BOARD
    assert (
        env.state_text("grid_and_coords") == f"{BOARD}\nEmpty cells are at (1,1) (3,4) (4,1) (4,3)."
    )
    assert env.state_text("coords") == (
        "Filled cells are (1,2)=1 (1,3)=2 (1,4)=4 (2,1)=4 (2,2)=2 (2,3)=1 (2,4)=3 (3,1)=2 (3,2)=3 (3,3)=4 (4,2)=4 "
        "(4,4)=2; empty cells are at (1,1) (3,4) (4,1) (4,3)."
    )
    for action in ("1,1,3", "3,4,1", "4,1,1"):
        _, reward, terminated, _, info = env.step(action)
        assert (reward, terminated) == (0.0, False) and info["action_is_effective"]
    assert env.state_text("grid_and_coords").endswith("\nEmpty cell is at (4,3).")
    state, reward, terminated, truncated, info = env.step("4,3,3")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert state == "| 3 1 2 4 | 4 2 1 3 | 2 3 4 1 | 1 4 3 2"
    assert env.state_text("grid_and_coords").endswith("\nNo empty cells.")
    assert env.state_text("coords").endswith("(4,4)=2; no empty cells.")


@pytest.mark.parametrize(
    "action, valid, effective",
    [
        ("1,1,3", True, True),
        ("1,1,1", True, False),  # clashes with its row
        ("1,1,2", True, False),  # clashes with its column
        ("4,3,4", True, False),  # clashes with its box
        ("1,2,1", False, False),  # given
        ("1,2,3", False, False),
        ("5,1,1", False, False),
        ("0,1,1", False, False),
        ("1,1,0", False, False),
        ("1,1", False, False),
        ("1,1,3,4", False, False),
        ("", False, False),
    ],
)
def test_moves(action, valid, effective):
    env = start()
    before = env.state_text("grid")
    state, reward, _, _, info = env.step(action)
    assert (info["action_is_valid"], info["action_is_effective"], reward) == (valid, effective, 0.0)
    assert (state != before) == effective


def test_own_digits_can_be_replaced_and_given_ones_stay():
    env = start("| . . 2 4 | 4 2 . 3 | 2 . . . | . 4 3 2")
    assert env.step("1,1,1")[4]["action_is_effective"]
    assert not env.step("1,1,1")[4]["action_is_effective"]
    assert env.step("1,1,3")[4]["action_is_effective"]
    assert env.state_text("grid").startswith("| 3 . 2 4")
    assert not env.step("1,3,1")[4]["action_is_valid"]


@pytest.mark.parametrize(
    ("given", "cells"),
    [
        (
            "| . 2 . . | 4 . . . | . . . . | 1 . 4 .",
            (3, 2, 0, 4, 4, 0, 1, 2, 0, 0, 2, 0, 1, 0, 4, 3),
        ),
        (
            "| 2 . . . | . 1 . . | . 3 . 1 | . . . .",
            (2, 0, 0, 0, 4, 1, 3, 0, 0, 3, 0, 1, 0, 4, 0, 2),
        ),
    ],
)
def test_the_expert_moves_digits_aside_that_keep_right_values_out(given, cells):
    """No right value fits where it belongs, though the puzzle can still be won."""
    env = start(given)
    env.cells = [*cells]
    for _ in range(20):
        if not all(env.cells):
            (action,) = env.expert_actions(1)
            assert env.step(action)[4]["action_is_effective"]
    assert tuple(env.cells) == solve(env.given, env.size)[0]


@pytest.mark.parametrize(
    "text, action",
    [
        ("1,2,3", "1,2,3"),
        (" 1 2 3 ", "1,2,3"),
        ("(1, 2) = 3", "1,2,3"),
        ("row 1, col 2: 4", "1,2,4"),
        ("put 4 into column 2 of Row 1", "1,2,4"),
        ("row1 col2 3", "1,2,3"),
        ("row1, col2: 3", "1,2,3"),
        ("row_1 col_2 3", "1,2,3"),
        ("Row1 Column2 Value3", "1,2,3"),
        ("3 in row1, column2", "1,2,3"),
        ("col2row1=3", "1,2,3"),
        ("row_number 1, column_number 2: 3", "1,2,3"),
        ("place 3 at (1,2)", "1,2,3"),
        ("put 4 into cell 2,3", "2,3,4"),
        ("3 (1, 2)", "1,2,3"),
        ("write 2 in row 4 and column 1", "4,1,2"),
        ("cell (1,2) is 3", "1,2,3"),
        ("set 1,2 to 3", "1,2,3"),
        ("Answer: [1,2] -> 3.", "1,2,3"),
        ("place (1,2) 3", "1,2,3"),
        ("grid[1][2] = 3", "1,2,3"),
        ("cell[1][2]: 3", "1,2,3"),
        ("(1)(2)=3", "1,2,3"),
        ("3 [1][2]", None),
        ("col 1, 2, 3", None),
        ("place 3 1 2", None),
        ("1,2,-3", None),
        ("1,2,+3", None),
        ("1.5,2,3", None),
        ("1,2,3.0", None),
        ("3 then 1,2", None),
        ("1,2 at 3", None),
        ("R1", None),
        ("row 1 col 2", None),
        ("1,2,5", None),
        ("1,2,3,4", None),
        ("١,٢,٣", None),
        ("9" * 5000, None),
        ("1,2,3" + " " * 300, None),
    ],
)
def test_reading_moves(text, action):
    assert Sudoku().to_action(text) == action


@pytest.mark.parametrize("clues", [12, 9, 6, 5])
def test_small_boards_have_one_solution_and_the_asked_clues(clues):
    env = Sudoku(clues=clues)
    for seed in range(15):
        env.reset(seed=seed)
        rows = tuple(env.given[start : start + 4] for start in range(0, 16, 4))
        assert sum(digit > 0 for digit in env.given) == clues
        assert all_solutions(rows) == 1


def test_large_boards_have_one_solution():
    """An independent checker: exact cover of cells, rows, columns and boxes (Knuth's algorithm X), all solutions."""

    def covers(row, col, digit):
        return (
            ("cell", row, col),
            ("row", row, digit),
            ("col", col, digit),
            ("box", row // 3, col // 3, digit),
        )

    def count(open_places: dict, limit: int = 2) -> int:
        if not open_places:
            return 1
        place = min(open_places, key=lambda item: len(open_places[item]))
        found = 0
        for move in list(open_places[place]):
            gone = set(covers(*move))
            rest = {
                p: {m for m in moves if not gone & set(covers(*m))}
                for p, moves in open_places.items()
                if p not in gone
            }
            found += count(rest, limit - found)
            if found >= limit:
                break
        return found

    env = Sudoku(board_size=9, clues=30)
    for seed in range(3):
        env.reset(seed=seed)
        given = {divmod(cell, 9): digit for cell, digit in enumerate(env.given) if digit}
        assert len(given) == 30
        taken = {place for (row, col), digit in given.items() for place in covers(row, col, digit)}
        open_places: dict = {}
        for move in product(range(9), range(9), range(1, 10)):
            if not taken & set(covers(*move)):
                for place in covers(*move):
                    open_places.setdefault(place, set()).add(move)
        assert count(open_places) == 1


def test_solver_counts():
    flat = tuple(digit for row in FULL for digit in row)
    assert solve(flat, 4, limit=5) == [flat]
    assert len(solve((0,) * 16, 4, limit=1000)) == 288  # all 4x4 boards
    assert solve((1, 1, *(0,) * 14), 4) == []
    # 3 and 1 can be swapped in the corners of this rectangle.
    assert len(
        solve((0, 0, 2, 4, 4, 2, 1, 3, 2, 3, 4, 1, 0, 0, 3, 2), 4, limit=5)
    ) == all_solutions(((0, 0, 2, 4), (4, 2, 1, 3), (2, 3, 4, 1), (0, 0, 3, 2)))


def test_difficulties_and_clues():
    assert [Sudoku(difficulty=level).clues for level in ("easy", "medium", "hard")] == [12, 9, 6]
    assert [
        Sudoku(board_size=9, difficulty=level).clues for level in ("easy", "medium", "hard")
    ] == [36, 30, 24]
    assert Sudoku(clues=7, difficulty="easy").clues == 7


def test_boards_round_trip():
    env, copy = Sudoku(clues=8), Sudoku(clues=8)
    for seed in range(30):
        env.reset(seed=seed)
        copy.reset(options={"board": env.puzzle_text()})
        assert copy.given == env.given


def test_random_play_gets_what_the_rules_give_it():
    """Four right pairs of cell and digit among 16, 25 draws: a closed form, within four standard errors of the card."""
    tries, right, pairs = 25, 4, 16
    expected = sum(
        (-1) ** k * math.comb(right, k) * (1 - k / pairs) ** tries for k in range(right + 1)
    )
    measured = cards()["Sudoku"].random_success
    assert abs(measured - expected) < 4 * math.sqrt(expected * (1 - expected) / 1000)


def test_one_of_several_numbers_of_clues_and_as_many_actions_as_empty_cells():
    env = Sudoku(clues=[6, 7, 8], max_steps=None)
    seen = set()
    for seed in range(20):
        env.reset(seed=seed)
        empty = env.cells.count(0)
        seen.add(16 - empty)
        assert env.max_steps == empty == env.optimal_steps()
        *_, truncated, _ = env.step("1,1,9")
        assert env.best_success(100) == 0.0 and not truncated
        for _ in range(empty - 1):
            *_, truncated, _ = env.step("9")
        assert truncated
    assert seen == {6, 7, 8}
    assert "as many actions as the puzzle has empty cells" in env.instruction("grid")
    assert "as many actions" not in Sudoku().instruction("grid")
    with pytest.raises(ConfigError, match="option 'clues'"):
        Sudoku(clues=[])


def test_the_walk_writes_fitting_digits_and_the_distance_sees_dead_cells():
    env = Sudoku()
    env.reset(seed=0, options={"board": "| 1 2 3 . | 3 4 1 2 | 2 1 4 3 | 4 3 . 1"})
    rng = np.random.default_rng(0)
    assert {env.greedy_action(rng) for _ in range(20)} == {"1,4,4", "4,3,2"}
    assert env.goal_distance() == 2
    assert len(env.legal_actions()) == 8
    # The 2 in the last column leaves no digit for (1,4).
    env.cells = [1, 2, 3, 0, *[0] * 11, 4]
    assert env.goal_distance() == float("inf")

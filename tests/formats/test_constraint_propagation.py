"""Written derivations: a golden text by hand, what is read again, scores, parts, games that are refused."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.envs.base import Variable
from spa.envs.frozen_lake import FrozenLake
from spa.formats.base import SearchScore, search_metrics
from spa_games.formats.constraint_propagation import (
    FORMAT,
    derive,
    read_step,
    score_derivation,
    write_derivation,
)
from spa_games.sudoku import Sudoku
from spa_report.replay import written_search

BOARD = "| . . 1 4 | 1 4 2 3 | 4 2 3 1 | . 1 . 2"
TEXT = """\
open 11 12 41 43
11: 12=0 13=1 14=4 21=1 31=4 41=0 22=4 fits 2 3
12: 11=0 13=1 14=4 22=4 32=2 42=1 21=1 fits 3 so 12=3
41: 42=1 43=0 44=2 11=0 21=1 31=4 32=2 fits 3 so 41=3
43: 41=3 42=1 44=2 13=1 23=2 33=3 34=1 fits 4 so 43=4
open 11
11: 12=3 13=1 14=4 21=1 31=4 41=3 22=4 fits 2 so 11=2
1,2,3 4,1,3 4,3,4 1,1,2"""
LINES = TEXT.split("\n")


def sudoku(**options) -> Sudoku:
    env = Sudoku(**{"board_size": 4, "clues": [6, 7, 8], "max_steps": None, **options})
    env.reset(seed=0)
    return env


def by_hand() -> Sudoku:
    env = sudoku()
    env.reset(options={"board": BOARD})
    return env


def scored(text: str, *, complete: bool = True) -> SearchScore:
    score = score_derivation(text, by_hand().constraint_problem(), complete=complete)
    assert score is not None
    return score


def test_a_derivation_by_hand():
    derivation = derive(by_hand().constraint_problem())
    assert write_derivation(derivation) == TEXT
    assert derivation.path == ("1,2,3", "4,1,3", "4,3,4", "1,1,2")
    assert [line.key for line in derivation.lines] == ["11", "12", "41", "43", "11"]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31 - 1), clues=st.integers(5, 14), played=st.integers(0, 9))
def test_what_is_written_is_read_again_and_right(seed, clues, played):
    env = sudoku(clues=clues)
    env.reset(seed=seed)
    for action in env.expert_actions(16)[:played]:
        env.step(action)
    problem = env.constraint_problem()
    derivation = derive(problem)
    if derivation.path is None or all(env.cells):
        return
    text = write_derivation(derivation)
    *lines, path = text.split("\n")
    assert [read_step(line) for line in lines] == list(derivation.steps)
    score = score_derivation(text, problem)
    assert score is not None and score.failure == ""
    assert score.lines == score.next_right == score.moves == score.moves_right == score.status_right
    assert score.lines == len(derivation.lines) and score.paths == score.paths_right == 1
    # Three others in the row and in the column, one more in the box, each of them once.
    assert score.kinds["fact"] == (7 * score.lines, 7 * score.lines)
    effective = [env.step(env.to_action(action) or "")[4] for action in path.split()]
    assert all(info["action_is_effective"] for info in effective)
    assert effective[-1]["success"] and all(env.cells)


def with_line(number: int, old: str, new: str) -> str:
    assert old in LINES[number]
    return "\n".join([*LINES[:number], LINES[number].replace(old, new, 1), *LINES[number + 1 :]])


def without(*numbers: int) -> str:
    return "\n".join(line for number, line in enumerate(LINES) if number not in numbers)


WRONG = {
    "a cell that is not next": (without(1), "skipped"),
    "a cell is left out at the end of a sweep": (without(4), "skipped"),
    "a cell that is given": (with_line(1, "11:", "13:"), "expanded_again"),
    "a cell twice": ("\n".join([*LINES[:3], *LINES[2:]]), "expanded_again"),
    "no cell": (with_line(1, "11:", "91:"), "never_found"),
    "a wrong value of a neighbour": (with_line(1, "13=1", "13=2"), "wrong_fact"),
    "a value that was assigned is forgotten": (with_line(6, "41=3", "41=0"), "wrong_fact"),
    "a neighbour is left out": (with_line(1, " 13=1", ""), "wrong_fact"),
    "neighbours in another order": (with_line(1, "12=0 13=1", "13=1 12=0"), "wrong_fact"),
    "no neighbour": (with_line(1, "22=4", "22=4 33=3"), "wrong_fact"),
    "a value does not fit": (with_line(1, "fits 2 3", "fits 2 3 4"), "wrong_move"),
    "a value that fits is left out": (with_line(1, "fits 2 3", "fits 2 so 11=2"), "wrong_move"),
    "no assignment": (with_line(2, " so 12=3", ""), "wrong_status"),
    "another assignment": (with_line(2, "so 12=3", "so 12=2"), "wrong_status"),
    "another cell": (with_line(2, "so 12=3", "so 11=3"), "wrong_status"),
    "another list of open cells": (with_line(0, " 43", ""), "wrong_open"),
    "no list of open cells": (without(0), "wrong_open"),
    "a filled cell is open": (with_line(5, "open 11", "open 11 12"), "wrong_open"),
    "ends too early": (without(5, 6), "no_goal"),
    "no actions": (without(7), "wrong_path"),
    "wrong actions": (with_line(7, "4,3,4 1,1,2", "1,1,2 4,3,4"), "wrong_path"),
    "no line": (with_line(3, "41:", "well,"), "unreadable"),
    "one more line": (f"{TEXT}\n{LINES[6]}", "unreadable"),
    "one more space": (with_line(0, "11 12", "11  12"), "unreadable"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_the_first_error_is_named(what: str):
    text, failure = WRONG[what]
    assert scored(text).failure == failure


def test_each_line_is_judged_by_the_lines_before_it():
    """After a wrong assignment, the facts are those that the text itself has assigned."""
    text = with_line(2, "fits 3 so 12=3", "fits 2 so 12=2")
    for old, new in (("11: 12=3", "11: 12=2"), ("1,2,3", "1,2,2")):
        text = text.replace(old, new)
    score = scored(text)
    assert score.failure == "wrong_move"
    assert (score.moves, score.moves_right, score.status_right) == (5, 3, 5)
    # With 12=2 nothing fits 11, so that its last line is wrong, too.
    assert score.kinds == {"fact": (35, 35), "candidate": (3, 5), "open": (2, 2)}
    assert (score.next_right, score.paths_right) == (5, 1)


def test_a_wrong_fact_is_no_wrong_conclusion():
    """12 has 2 by this line's facts, though not by the board: the rule is right, the value is not."""
    score = scored(with_line(2, "32=2 42=1 21=1 fits 3 so 12=3", "32=3 42=1 21=1 fits 2 so 12=2"))
    assert score.failure == "wrong_fact"
    # The last line has the true 12=3, which is not what this text has assigned.
    assert score.kinds["fact"] == (33, 35) and score.kinds["candidate"] == (5, 5)
    assert score.moves_right == 3


def test_a_text_that_is_cut_off():
    cut = TEXT[: TEXT.index(" so 43")]
    assert scored(cut, complete=False).failure == "over_limit"
    assert scored(cut.replace("13=1", "13=2", 1), complete=False).failure == "wrong_fact"
    assert scored("", complete=False).failure == "over_limit"
    assert scored(cut).failure == "wrong_status"


def test_metrics_have_the_kinds():
    metrics = search_metrics([scored(TEXT), scored(WRONG["no assignment"][0])])
    assert metrics["search/exact"] == 0.5 and metrics["search/fact"] > 0.9
    assert metrics["search/open"] == 0.75 and metrics["search/wrong_status"] == 0.5


def test_parts_cover_the_text():
    response = f"<think>{TEXT}</think><answer>1,2,3 || 4,1,3</answer>"
    for text, answer in ((response, True), (response.removeprefix("<think>"), True), (TEXT, False)):
        parts = FORMAT.parts(text)
        assert ("answer" in {kind for kind, _, _ in parts}) == answer
        covered = {place for _, begin, end in parts for place in range(begin, end)}
        assert sum(end - begin for _, begin, end in parts) == len(covered)
        rest = "".join(char for place, char in enumerate(text) if place not in covered)
        for word in ("<think>", "</think>", "<answer>", "</answer>", "fits"):
            rest = rest.replace(word, "")
        assert set(rest) <= {" ", ":", "\n"}
    words = [(kind, response[begin:end]) for kind, begin, end in FORMAT.parts(response)]
    assert words[:6] == [
        ("open", "open 11"), ("open", "12"), ("open", "41"), ("open", "43"), ("next", "11"), ("fact", "12=0"),
    ]  # fmt: skip
    assert words[11:22] == [
        ("fact", "22=4"), ("candidate", "2"), ("candidate", "3"), ("next", "12"), *words[15:22],
    ]  # fmt: skip
    assert ("value", "so 12=3") in words and words[-2:] == [
        ("path", "1,1,2"), ("answer", "1,2,3 || 4,1,3"),
    ]  # fmt: skip


def test_the_viewer_shows_each_cell_with_its_neighbours():
    first, *lines = FORMAT.show(f"I look.\n{TEXT}", ())
    assert [key for _, key, _ in first["moves"]] == ["11", "12", "41", "43", "11 (again, 1)"]
    assert [line["key"] for line in lines] == ["11", "12", "41", "43", "11 (again, 1)"]
    assert lines[0]["moves"][:2] == [["12 =", "0", ""], ["13 =", "1", ""]]
    assert [line["moves"][-1] for line in lines[:2]] == [["fits", "2 3", "open"], ["fits", "3", ""]]
    assert FORMAT.show("I look.", ()) == []
    assert written_search(FORMAT.name, TEXT, ()) == [first, *lines]


def test_later_states_are_those_of_its_own_actions():
    env = by_hand()
    true, copies = FORMAT.explore(env)
    assert true == {
        "0": (("1,2,3", "1", ""),),
        "1": (("4,1,3", "2", ""),),
        "2": (("4,3,4", "3", ""),),
        "3": (("1,1,2", "4", "goal"),),
    }
    assert [copy.state_text("grid") for copy in copies.values()] == [
        BOARD,
        BOARD.replace("| . .", "| . 3"),
        BOARD.replace("| . .", "| . 3").replace("| . 1 .", "| 3 1 ."),
        BOARD.replace("| . .", "| . 3").replace("| . 1 .", "| 3 1 4"),
    ]
    assert env.cells == by_hand().cells


def test_a_puzzle_that_stalls_has_no_derivation():
    env = sudoku(board_size=9, clues=24)
    stalled = derive(env.constraint_problem())
    assert stalled.path is None and stalled.lines
    with pytest.raises(ValueError, match="stalled"):
        write_derivation(stalled)
    assert score_derivation("open 11", env.constraint_problem()) is None
    assert FORMAT.explore(env)[0] == {"0": ()}
    # A wrong digit of the player's own may leave no digit for a cell.
    wrong = by_hand()
    wrong.step("1,1,3")
    assert derive(wrong.constraint_problem()).path is None


def test_the_control_permutes_values_and_keeps_the_rule():
    env = by_hand()
    false = FORMAT.dealt({}, "0", env, np.random.default_rng(0))
    text = write_derivation(false)
    assert false.path is not None and not {*false.path} & {*TEXT.split("\n")[-1].split()}
    score = scored(text)
    assert score.lines == score.next_right == 5 and score.kinds["candidate"] == (5, 5)
    # What is open is open in both worlds.
    true = derive(env.constraint_problem())
    zeros = sum(value == "0" for line in true.lines for _, value in line.facts)
    assert score.kinds["fact"][0] <= zeros + 8


class Other(Sudoku):
    """A game whose problem has one variable that is not as it should be."""

    changed: Variable

    def constraint_problem(self) -> dict[str, Variable]:
        return {**super().constraint_problem(), "11": self.changed}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"neighbours": ("12",)}, "11 is a neighbour of 13, but not the reverse"),
        ({"neighbours": ("77",)}, "77 is a neighbour of 11, but not the reverse"),
        ({"actions": {"0": "1,1,1"}}, "has the value '0' for 11"),
        ({"actions": {"2 3": "1,1,1"}}, "the word '2 3'"),
        ({"actions": {"so": "1,1,1"}}, "the word 'so'"),
        ({"value": "a=b"}, "the word 'a=b'"),
        ({"actions": {"2": "zero", "3": "zero"}}, "to_action does not accept 'zero'"),
        ({"actions": {"2": "1,1,4", "3": "1,1,4"}}, "do not reach the goal"),
    ],
)
def test_a_problem_that_cannot_be_written_is_refused(change: Mapping, message: str):
    game = Other(board_size=4)
    game.changed = Variable("", (), {})
    game.reset(options={"board": BOARD})
    game.changed = replace(Sudoku.constraint_problem(game)["11"], **change)
    with pytest.raises(ValueError, match=message):
        FORMAT.explore(game)


def test_a_game_without_variables_is_refused():
    lake = FrozenLake()
    lake.reset(seed=0)
    assert FORMAT.reference(lake) is None
    with pytest.raises(
        ValueError, match=r"FrozenLake does not implement TextEnv\.constraint_problem"
    ):
        FORMAT.explore(lake)


class NotCopied(Sudoku):
    changes = None


def test_a_game_that_cannot_be_copied_is_refused():
    game = NotCopied(board_size=4)
    game.reset(seed=0)
    with pytest.raises(NotImplementedError, match="NotCopied cannot be copied, which derivations"):
        FORMAT.explore(game)


def test_neighbours_of_large_boards():
    for size in (4, 9, 16):
        env = sudoku(board_size=size, clues=size * size - 3)
        problem = env.constraint_problem()
        assert len(problem) == size * size
        box = round(size**0.5)
        assert {len(each.neighbours) for each in problem.values()} == {
            3 * (size - 1) - 2 * (box - 1)
        }
        FORMAT.explore(env)

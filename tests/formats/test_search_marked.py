"""Breadth-first search that marks new states: the text letter by letter, wrong and missing marks, and
the same searches as the format `search`."""

import pytest

from spa.envs.registry import make_env
from spa.formats.base import SearchScore
from spa.formats.registry import format_of
from spa.formats.search import FORMAT as PLAIN
from spa.formats.search import explore, run_search
from spa.formats.search_marked import FORMAT
from spa_sweeps.methods import METHODS

EXAMPLE = """31: Left30 new Down31 seen Right32 new Up21 new ; 30 32 21
30 Left: Left30 seen Down30 seen Right31 seen Up20 new ; 32 21 20
32 Right: Left31 seen Down32 seen Right33 hole Up22 new ; 21 20 22
21 Up: Left20 seen Down31 seen Right22 seen Up11 new ; 20 22 11
20 Left Up: Left20 seen Down30 seen Right21 seen Up10 goal
Left Up Up"""
BOARD = "____\nG___\n____\n_P_O"


def lake(board: str | None = None, seed: int = 0):
    env = make_env("frozen_lake", {"size": 4, "p": 0.8, "is_slippery": False})
    env.reset(seed=seed, options={} if board is None else {"board": board})
    return env


def searched(env):
    true, _ = explore(env)
    return run_search(FORMAT.searching(env.state_key(), env), lambda key: true[key])


def scored(text: str) -> SearchScore:
    env = lake(BOARD)
    score = FORMAT.score(text, FORMAT.reference(env), env, complete=True)
    assert score is not None
    return score


def test_the_example_is_written_letter_by_letter():
    env = lake(BOARD)
    assert FORMAT.written(searched(env), env) == EXAMPLE
    assert format_of("search_marked") is FORMAT


def test_the_example_scores_in_full():
    score = scored(EXAMPLE)
    assert (score.failure, score.moves_right, score.status_right) == ("", score.moves, score.moves)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("Left30 new", "Left30"),
        ("Left30 new", "Left30 seen"),
        ("Down31 seen", "Down31 new"),
        ("Right33 hole", "Right33 new"),
    ],
)
def test_a_wrong_mark_counts_as_a_wrong_status(right: str, wrong: str):
    score = scored(EXAMPLE.replace(right, wrong, 1))
    assert score.failure == "wrong_status"
    assert (score.moves_right, score.status_right) == (score.moves, score.moves - 1)


@pytest.mark.parametrize("seed", range(12))
def test_without_its_marks_a_search_is_one_of_the_format_search(seed: int):
    env = lake(seed=seed)
    other = run_search(PLAIN.searching(env.state_key(), env), lambda key: explore(env)[0][key])
    assert FORMAT.written(searched(env), env).replace(" new", "") == PLAIN.written(other, env)


def test_a_text_that_was_cut_off_has_no_wrong_status():
    env = lake(BOARD)
    score = FORMAT.score(EXAMPLE[:60], FORMAT.reference(env), env, complete=False)
    assert score is not None and score.failure == "over_limit"


def test_a_mark_follows_the_state_that_a_letter_pushes_to():
    env = make_env("hidden_dynamics_lake", {"min_moves": 3})
    env.reset(seed=3)
    text = FORMAT.written(searched(env), env)
    assert text.startswith("21: Left31 new Down20a>30 new Right11e>12 new Up22e>23 new ; 31 30")
    score = FORMAT.score(text, FORMAT.reference(env), env, complete=True)
    assert score is not None and score.failure == ""


def test_marks_are_statuses_among_the_parts_of_a_line():
    line = EXAMPLE.split("\n")[0]
    statuses = [line[begin:end] for kind, begin, end in FORMAT.line_parts(line) if kind == "status"]
    assert statuses == ["new", "seen", "new", "new"]


def test_the_search_methods_exist_in_this_format():
    names = {f"search_marked_{name}" for name in ("model", "simulator", "dealt", "other_puzzle")}
    assert names <= METHODS.keys()
    assert "agent_proxy.response_format=search_marked" in METHODS["search_marked_model"].overrides

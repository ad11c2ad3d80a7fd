"""Breadth-first search that lists the paths of open states: the text letter by letter, and wrong paths."""

import re
from itertools import pairwise

import pytest
from test_search_marked import BOARD, lake

from spa.formats.registry import format_of
from spa.formats.search import explore, run_search
from spa.formats.search_paths import FORMAT

EXAMPLE = """31: Left30 new Down31 seen Right32 new Up21 new ; 30 Left 32 Right 21 Up
30 Left: Left30 seen Down30 seen Right31 seen Up20 new ; 32 Right 21 Up 20 Left Up
32 Right: Left31 seen Down32 seen Right33 hole Up22 new ; 21 Up 20 Left Up 22 Right Up
21 Up: Left20 seen Down31 seen Right22 seen Up11 new ; 20 Left Up 22 Right Up 11 Up Up
20 Left Up: Left20 seen Down30 seen Right21 seen Up10 goal
Left Up Up"""


def written(env) -> str:
    true, _ = explore(env)
    search = run_search(FORMAT.searching(env.state_key(), env), lambda key: true[key])
    return FORMAT.written(search, env)


def failure(text: str) -> str:
    env = lake(BOARD)
    score = FORMAT.score(text, FORMAT.reference(env), env, complete=True)
    assert score is not None
    return score.failure


def test_the_example_is_written_letter_by_letter():
    assert written(lake(BOARD)) == EXAMPLE
    assert format_of("search_paths") is FORMAT
    assert failure(EXAMPLE) == ""


@pytest.mark.parametrize("wrong", ["; 30 Up 32", "; 30 32", "; 30 Left Left 32"])
def test_a_wrong_path_of_an_open_state_counts_as_a_wrong_list(wrong: str):
    assert failure(EXAMPLE.replace("; 30 Left 32", wrong, 1)) == "wrong_open"


@pytest.mark.parametrize("seed", range(12))
def test_a_line_begins_like_the_list_before_it(seed: int):
    *lines, _ = written(lake(seed=seed)).split("\n")
    for before, line in pairwise(lines):
        begun = line.partition(":")[0]
        opened = before.partition(" ; ")[2]
        assert opened == begun or opened.startswith(f"{begun} ")
        assert re.fullmatch(r"\d\d( [A-Z][a-z]+)+", begun)

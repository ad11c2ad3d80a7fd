"""Breadth-first search as text: the format letter by letter, and what the scorer finds in spoilt texts."""

import numpy as np
import pytest

from spa.envs.base import find_label
from spa.envs.frozen_lake import FrozenLake
from spa.envs.registry import make_env
from spa.formats.base import FAILURES, SearchScore, search_metrics
from spa.formats.blocks import think_text
from spa.formats.search import (
    GOAL,
    breadth_first,
    dealt,
    explore,
    read_line,
    score_search,
    write_search,
)

EXAMPLE = """31: Left30 Down31 seen Right32 Up21 ; 30 32 21
30 Left: Left30 seen Down30 seen Right31 seen Up20 ; 32 21 20
32 Right: Left31 seen Down32 seen Right33 hole Up22 ; 21 20 22
21 Up: Left20 seen Down31 seen Right22 seen Up11 ; 20 22 11
20 Left Up: Left20 seen Down30 seen Right21 seen Up10 goal
Left Up Up"""
BOARD = "____\nG___\n____\n_P_O"
ACTIONS = ("Left", "Down", "Right", "Up")
LINES = EXAMPLE.split("\n")


def lake(board: str | None = None, seed: int = 0):
    env = make_env("frozen_lake", {"size": 4, "p": 0.8, "is_slippery": False})
    env.reset(seed=seed, options={} if board is None else {"board": board})
    return env


def searched(env):
    true, _ = explore(env)
    return true, breadth_first(env.state_key(), lambda key: true[key])


def scored(text: str, *, complete: bool = True) -> SearchScore:
    score = score_search(text, searched(lake(BOARD))[0], actions=ACTIONS, complete=complete)
    assert score is not None
    return score


def test_the_example_is_written_letter_by_letter():
    _, search = searched(lake(BOARD))
    assert write_search(search) == EXAMPLE


@pytest.mark.parametrize("seed", range(12))
def test_the_path_is_a_shortest_one_and_the_text_scores_in_full(seed: int):
    env = lake(seed=seed)
    true, search = searched(env)
    assert search.path is not None
    assert len(search.path) == env.optimal_steps()
    copy = env.clone()
    for name in search.path:
        action = copy.to_action(name)
        assert action is not None
        *_, info = copy.step(action)
    assert info["success"]
    score = score_search(write_search(search), true, actions=ACTIONS)
    assert score is not None and score.failure == ""
    assert (score.moves, score.lines, score.paths) == (
        score.moves_right,
        score.next_right,
        score.paths_right,
    )
    assert score.moves == score.status_right == sum(len(line.moves) for line in search.lines)
    assert score.paths == len(search.lines) + 1


def with_line(number: int, old: str, new: str) -> str:
    assert old in LINES[number]
    return "\n".join([*LINES[:number], LINES[number].replace(old, new, 1), *LINES[number + 1 :]])


CORRUPTED = {
    "skipped": "\n".join([LINES[0], *LINES[2:]]),
    "never_found": with_line(1, "30 Left:", "13 Left:"),
    "expanded_again": "\n".join([LINES[0], LINES[1], *LINES[1:]]),
    "wrong_path": with_line(2, "32 Right:", "32 Up:"),
    "wrong_move": with_line(2, "Up22 ; 21 20 22", "Up12 ; 21 20 12"),
    "wrong_status": with_line(2, "Right33 hole", "Right33 seen"),
    "wrong_open": with_line(1, "; 32 21 20", "; 32 20 21"),
    "no_goal": "\n".join([*LINES[:4], LINES[5]]),
    "unreadable": with_line(1, "Left30 seen Down30", "Left30 seen seen Down30"),
}


@pytest.mark.parametrize("failure", CORRUPTED)
def test_each_corruption_lands_in_its_class(failure: str):
    assert scored(CORRUPTED[failure]).failure == failure


def test_a_wrong_end_and_no_end_are_wrong_paths():
    assert scored(EXAMPLE.removesuffix("\nLeft Up Up")).failure == "wrong_path"
    score = scored(EXAMPLE.replace("\nLeft Up Up", "\nUp Left Up"))
    assert (score.failure, score.paths - score.paths_right) == ("wrong_path", 1)


def test_a_text_that_is_cut_off_is_over_the_limit_unless_it_was_wrong_before():
    cut = EXAMPLE[: EXAMPLE.index("Up22")]
    assert scored(cut, complete=False).failure == "over_limit"
    assert (
        scored(with_line(0, "Left30", "Left20")[: len(cut)], complete=False).failure == "wrong_move"
    )


def test_an_action_may_begin_with_the_name_of_another():
    line = read_line("a: Rb RRc seen ; b", ("R", "RR"))
    assert line is not None
    assert [(move.action, move.key) for move in line.moves] == [("R", "b"), ("RR", "c")]


def test_a_status_may_begin_with_the_name_of_an_action():
    line = read_line("a: h1 hole s2 seen ; b", ("h", "s"))
    assert line is not None
    assert [(move.key, move.status) for move in line.moves] == [("1", "hole"), ("2", "seen")]


PASSED = with_line(4, "Up10 goal", "Up10 goal Right21 seen")


def test_moves_after_the_goal_are_wrong_and_the_first_goal_counts():
    score = scored(PASSED)
    assert (score.failure, score.moves - score.moves_right, score.paths_right) == (
        "wrong_move",
        1,
        score.paths,
    )
    again = scored(with_line(4, "Up10 goal", "Up10 goal Up10 goal"))
    assert (again.failure, again.paths_right) == ("wrong_move", again.paths)


def test_a_cut_off_text_that_passes_the_goal_is_not_right_as_far_as_it_goes():
    assert (
        scored(PASSED.removesuffix("\nLeft Up Up") + "\nLe", complete=False).failure == "wrong_move"
    )
    line = PASSED.index("Right21 seen", PASSED.index("goal"))
    assert scored(PASSED[: line + 9], complete=False).failure == "wrong_move"
    assert scored(EXAMPLE[: EXAMPLE.index(" goal") + 3], complete=False).failure == "over_limit"
    assert scored(EXAMPLE[: EXAMPLE.index(" goal") + 5], complete=False).failure == "over_limit"


def test_a_missing_action_is_a_wrong_move():
    assert scored(with_line(1, " Right31 seen", "")).failure == "wrong_move"


def test_bookkeeping_is_judged_by_what_the_text_has_found():
    """After a wrong move the text goes on with the state that it wrote: only the move is wrong."""
    text = with_line(0, "Up21 ; 30 32 21", "Up11 ; 30 32 11")
    score = scored("\n".join(text.split("\n")[:3]), complete=False)
    assert (score.moves - score.moves_right, score.lines, score.next_right) == (1, 2, 2)


def test_a_state_that_is_expanded_too_early_leaves_the_others_open():
    score = scored("\n".join([LINES[0], LINES[2], LINES[1], *LINES[3:]]))
    # Lines 31, 30 and 21 come when they are next. 32 comes before 30, and 20 before 22.
    assert (score.lines, score.next_right, score.failure) == (5, 3, "skipped")


@pytest.mark.parametrize(
    "text", ["", "\n\n", ":", "31:", "31: ;", "Left Up Up", "31: Left", "x" * 500]
)
def test_any_text_has_a_score(text: str):
    assert scored(text).failure in FAILURES
    assert scored(text, complete=False).failure in FAILURES


def test_a_dealt_world_has_the_same_edges_and_distances_by_other_actions():
    true, search = searched(lake(BOARD))
    world = dealt(true, np.random.default_rng(1))
    assert world != true
    for key, successors in true.items():
        assert [action for action, _, _ in world[key]] == [action for action, _, _ in successors]
        assert sorted(world[key][i][1:] for i in range(4)) == sorted(
            each[1:] for each in successors
        )
    false = breadth_first("31", lambda key: world[key])
    assert search.path is not None and false.path is not None
    assert len(false.path) == len(search.path)
    score = score_search(write_search(false), true, actions=ACTIONS)
    assert score is not None and score.moves_right < score.moves


def test_limits_end_a_search_without_a_path():
    true, _ = searched(lake(BOARD))
    for limits in ({"max_lines": 4}, {"max_depth": 2}):
        search = breadth_first("31", lambda key: true[key], **limits)
        assert search.path is None
        with pytest.raises(ValueError, match="found no goal"):
            write_search(search)


def test_a_search_in_a_room_names_player_and_box_and_calls_a_corner_dead():
    env = make_env("sokoban", {})
    env.reset(options={"board": "######\n######\n#_XPO#\n#___##\n######\n######"})
    _, search = searched(env)
    assert (
        write_search(search)
        == """2322: Up2322 seen Down3322 Left2221 dead Right2422 ; 3322 2422
3322 Down: Up2322 seen Down3322 seen Left3222 Right3322 seen ; 2422 3222
2422 Right: Up2422 seen Down2422 seen Left2322 seen Right2422 seen ; 3222
3222 Down Left: Up3222 seen Down3222 seen Left3122 Right3322 seen ; 3122
3122 Down Left Left: Up2122 Down3122 seen Left3122 seen Right3222 seen ; 2122
2122 Down Left Left Up: Up2122 seen Down3122 seen Left2122 seen Right2223 ; 2223
2223 Down Left Left Up Right: Up2223 seen Down3223 Left2123 Right2324 goal
Down Left Left Up Right Right"""
    )


def test_slippery_ice_and_other_games_name_no_states():
    with pytest.raises(ValueError, match=r"does not implement TextEnv\.state_key"):
        env = make_env("sudoku", {})
        env.reset(seed=0)
        explore(env)
    env = make_env("frozen_lake", {"size": 4})
    env.reset(seed=0)
    assert env.state_key() is None


class NotCopied(FrozenLake):
    changes = None


class NamelessGoal(FrozenLake):
    def state_key(self):
        return None if self.state_outcome() == GOAL else super().state_key()


class OtherLabels(FrozenLake):
    def action_names(self):
        return ("West", "South", "East", "North")

    def to_action(self, text):
        return find_label(text, super().action_names())


class LongLabels(FrozenLake):
    def action_names(self):
        return ("Go left", "Go down", "Go right", "Go up")


class LongKeys(FrozenLake):
    def state_key(self):
        return " ".join(super().state_key() or "")


class EmptyKeys(FrozenLake):
    def state_key(self):
        return ""


class RowKeys(FrozenLake):
    def state_key(self):
        return (super().state_key() or "")[:1]


class DigitLabels(OtherLabels):
    def action_names(self):
        return ("Go", "Go1", "Go2", "Go3")

    def to_action(self, text):
        return find_label(text, self.action_names())


class OneLabel(DigitLabels):
    def action_names(self):
        return ("Left", "Down", "Right", "left")


class CapitalGoal(FrozenLake):
    def state_outcome(self):
        return super().state_outcome().replace(GOAL, "Goal")


class EndsWithoutWord(FrozenLake):
    def state_outcome(self):
        return super().state_outcome().replace("hole", "")


class SeenHoles(FrozenLake):
    def state_outcome(self):
        return super().state_outcome().replace("hole", "seen")


class NewHoles(FrozenLake):
    def state_outcome(self):
        return super().state_outcome().replace("hole", "new")


class OneNameAtBothEnds(FrozenLake):
    def state_key(self):
        ends = self.state_outcome() == GOAL or super().state_key() == super().key_of_text(
            self.start
        )
        return "end" if ends else super().state_key()

    def reset(self, **kwargs):
        found = super().reset(**kwargs)
        self.start = self.state_text("coords")
        return found


class ChanceWithKeys(FrozenLake):
    """A slippery lake that names its states all the same."""

    def __init__(self, **options):
        super().__init__(**{**options, "is_slippery": True})

    def state_key(self):
        return self.key_of_text(self.state_text("coords"))


class SpelledStatus(OtherLabels):
    """The action h to the state ole reads like a hole."""

    def action_names(self):
        return ("h", "i", "j", "k")

    def to_action(self, text):
        return find_label(text, self.action_names())

    def state_key(self):
        key = super().state_key() or ""
        return {self.last: "ole"}.get(key, key)

    def reset(self, **kwargs):
        found = super().reset(**kwargs)
        self.last = super().state_key()
        return found


@pytest.mark.parametrize(
    ("game", "words"),
    [
        (ChanceWithKeys, "ChanceWithKeys is not deterministic: .* after the action"),
        (SpelledStatus, "SpelledStatus writes the move to the state 'ole' as 'hole'"),
        (
            SeenHoles,
            "SeenHoles.state_outcome returns 'seen', which tells whether a state was found before",
        ),
        (
            NewHoles,
            "NewHoles.state_outcome returns 'new', which tells whether a state was found before",
        ),
        (OneNameAtBothEnds, "gives the name 'end' to states with the outcomes '' and 'goal'"),
        (EmptyKeys, "EmptyKeys has the state_key ''"),
        (RowKeys, "RowKeys.state_key gives the name .* to states with the outcomes"),
        (DigitLabels, "DigitLabels writes Go.* reads as another action"),
        (OneLabel, "OneLabel has two actions of one name among Left, Down, Right, left"),
        (CapitalGoal, "CapitalGoal.state_outcome returns 'Goal' .*info.'success'. is True"),
        (EndsWithoutWord, "EndsWithoutWord.state_outcome returns '' .* the game ends"),
        (
            LongLabels,
            "LongLabels has the action 'Go left'; in a written search it must have at least one character, and no blanks",
        ),
        (LongKeys, "LongKeys has the state_key '. .'"),
        (NotCopied, "NotCopied cannot be copied.*changes.*clone"),
        (NamelessGoal, r"NamelessGoal\.state_key returns None after the action"),
        (OtherLabels, r"OtherLabels\.to_action does not accept 'West'"),
    ],
)
def test_what_a_game_lacks_for_a_search_is_named(game, words):
    env = game(size=4, p=0.8, is_slippery=False)
    env.reset(seed=0)
    with pytest.raises((ValueError, NotImplementedError), match=words):
        explore(env)


@pytest.mark.parametrize("last", ["hello world", "31: Left30 seen seen Down"])
def test_a_last_line_of_other_words_is_unreadable(last: str):
    assert scored("\n".join([*LINES[:-2], last])).failure == "unreadable"
    assert scored("\n".join([*LINES[:-2], "Left Up"])).failure == "no_goal"


def test_metrics_are_shares_over_all_moves_and_responses():
    scores = [scored(EXAMPLE), scored(CORRUPTED["wrong_status"])]
    metrics = search_metrics(scores)
    moves = sum(score.moves for score in scores)
    assert metrics["search/exact"] == metrics["search/wrong_status"] == 0.5
    assert metrics["search/status"] == (moves - 1) / moves
    assert metrics["search/move"] == metrics["search/next"] == metrics["search/path"] == 1.0
    assert metrics["search/exact"] + sum(metrics[f"search/{name}"] for name in FAILURES) == 1.0
    assert search_metrics([]) == {}


def test_thoughts_are_what_the_think_block_holds():
    assert think_text("<think>a\nb</think><answer>Up</answer>") == ("a\nb", True)
    assert think_text("<think>a\nb") == ("a\nb", False)
    assert GOAL == "goal"

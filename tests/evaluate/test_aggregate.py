"""Figures of an evaluation, worked by hand."""

import pytest

from spa.evaluation.aggregate import KS, by_difficulty, not_computed, play_report
from spa.evaluation.outcomes import Group, Outcome


def attempt(success: bool, **changes) -> Outcome:
    fields = {
        "success": success,
        "stop": "success" if success else "turn_cap",
        "score": 1.0 if success else -0.5,
        "reward": float(success),
        "turns": 2,
        "well_formed": 1,
        "cut_off": 0,
        "actions": 4,
        "invalid": 1,
        "ineffective": 2,
        "tokens": 10,
        "observed": 1,
        "predicted": 0,
    }
    return Outcome(**{**fields, **changes})


def group(number: int, *successes: bool, difficulty: int | None = None) -> Group:
    return Group(
        tag="T",
        group=number,
        puzzle_seed=number,
        puzzle_hash=f"{number:016x}",
        difficulty=difficulty,
        attempts=tuple(attempt(success) for success in successes),
    )


def test_figures_by_hand():
    groups = [group(0, True, False, difficulty=3), group(1, False, False, difficulty=5)]
    report = play_report(groups, ks=KS, world_model=True)
    assert report["pass@1"]["mean"] == 0.25 and report["pass@1"]["n"] == 2
    assert report["pass@2"]["mean"] == 0.5
    assert "pass@4" not in report
    assert report["pass@any"] == 0.5
    assert (report["puzzles"], report["episodes"], report["errors"]) == (2, 4, 0)
    assert report["format_rate"] == 0.5
    assert report["invalid_per_action"] == 0.25
    assert report["ineffective_per_action"] == 0.5
    assert (report["actions_per_episode"], report["turns_per_episode"]) == (4.0, 2.0)
    assert (report["tokens_per_episode"], report["tokens_per_turn"]) == (10.0, 5.0)
    assert (report["observation_exact"], report["prediction_exact"]) == (0.5, 0.0)
    assert report["score"] == -0.125
    assert report["stops"] == {"success": 1, "turn_cap": 3}


def test_interval_holds_the_mean_and_narrows_with_puzzles():
    few = play_report([group(i, i % 2 == 0) for i in range(10)], ks=[1])["pass@1"]
    many = play_report([group(i, i % 2 == 0) for i in range(250)], ks=[1])["pass@1"]
    for found in (few, many):
        assert found["low"] < 0.5 < found["high"]
    assert many["high"] - many["low"] < (few["high"] - few["low"]) / 3


def test_broken_off_attempts_count_nowhere():
    broken = Group(
        tag="T",
        group=2,
        puzzle_seed=2,
        puzzle_hash="2",
        difficulty=None,
        attempts=(attempt(True), attempt(False, stop="error", error="server gone")),
    )
    report = play_report([group(0, True, True), broken], ks=[1, 2])
    assert (report["episodes"], report["errors"]) == (3, 1)
    assert report["pass@1"]["mean"] == 1.0 and report["pass@1"]["n"] == 2
    assert report["pass@2"]["n"] == 1
    assert not broken.complete


def test_nothing_played_is_said_and_not_divided_by():
    broken = Group(
        tag="T",
        group=0,
        puzzle_seed=0,
        puzzle_hash="",
        difficulty=None,
        attempts=(attempt(False, stop="error"),),
    )
    assert play_report([broken], ks=[1]) == {"puzzles": 1, "episodes": 0, "errors": 1}


def test_difficulty_strata():
    groups = [
        group(0, True, difficulty=3),
        group(1, False, difficulty=3),
        group(2, True, difficulty=1),
        group(3, True),
    ]
    found = by_difficulty(groups, seed=0, resamples=100)
    assert [
        (part["difficulty"], part["pass@1"]["mean"], part["pass@1"]["n"]) for part in found
    ] == [
        (1, 1.0, 1),
        (3, 0.5, 2),
    ]


def test_larger_k_than_samples_is_said():
    assert not_computed((1, 8, 16), 8) == {
        "pass@16": "Pass@16 needs 16 samples per puzzle, but the validation has 8. Raise es_manager.val.group_size."
    }


def test_no_actions_have_no_ratio():
    idle = Group(
        tag="T",
        group=0,
        puzzle_seed=0,
        puzzle_hash="0",
        difficulty=None,
        attempts=(attempt(False, actions=0, invalid=0, ineffective=0, well_formed=0),),
    )
    report = play_report([idle], ks=[1])
    assert report["invalid_per_action"] is None and report["format_rate"] == 0.0
    # Wilson: one puzzle says little
    assert report["pass@1"]["mean"] == 0.0 and report["pass@1"]["high"] > 0.5


@pytest.mark.parametrize("difficulty", [None, 4])
def test_groups_round_trip(difficulty):
    original = group(7, True, False, difficulty=difficulty)
    assert Group.from_json(original.to_json()) == original

"""What episodes say about a policy, by hand."""

from dataclasses import replace

import pytest
from helpers.play import answer, groups, lake, play, says

from spa.evaluation.episode_metrics import episode_metrics, pooled_metrics
from spa.evaluation.passk import outcomes
from spa.formats.registry import parse_response
from spa.types import Episode, StopReason, Turn


def turn(
    executed: int,
    *,
    valid: int,
    effective: int,
    reward: float = 0.0,
    penalty: float = 0.0,
    text: str = "",
) -> Turn:
    infos = tuple(
        {"action_is_valid": i < valid, "action_is_effective": i < effective, "success": False}
        for i in range(executed)
    )
    return Turn(
        state="s",
        actions_left=9,
        response_text=text,
        response=parse_response(text or answer("Left"), mode="base"),
        executed=("Left",) * executed,
        reward=reward,
        penalty=penalty,
        next_state="s",
        infos=infos,
        finish_reason="length" if text else "stop",
    )


def episode(
    *turns: Turn,
    puzzle: int = 1,
    success: bool = False,
    tag: str = "A",
    stop: StopReason = StopReason.MAX_TURNS,
) -> Episode:
    (played,) = play(groups(1, 1), says(answer("Left")), make=lake, max_turn=1)
    return replace(
        played, turns=turns, puzzle_seed=puzzle, success=success, tag=tag, stop=stop, mode="base"
    )


def some() -> list[Episode]:
    return [
        episode(turn(3, valid=2, effective=1, reward=1.0), success=True, stop=StopReason.SUCCESS),
        episode(
            turn(1, valid=1, effective=0), turn(0, valid=0, effective=0, penalty=-0.1, text="noise")
        ),
        episode(turn(1, valid=1, effective=1, reward=-0.5), puzzle=2),
        episode(turn(1, valid=1, effective=1), puzzle=2),
    ]


def test_ratios_of_actions_are_per_action():
    found = episode_metrics(some(), "val")
    assert found["val/A/action_is_valid"] == pytest.approx(5 / 6)
    assert found["val/A/action_is_effective"] == pytest.approx(3 / 6)
    assert found["val/A/num_actions"] == pytest.approx(6 / 4)
    assert found["val/A/num_turns"] == pytest.approx(5 / 4)
    assert found["val/A/format_rate"] == pytest.approx(4 / 5)
    assert found["val/A/completions/clipped_ratio"] == pytest.approx(1 / 5)


def test_the_players_of_a_game_are_groups_of_their_own():
    move = turn(1, valid=1, effective=1)
    played = [
        replace(episode(move, success=seat == 0), seat=seat) for seat in (0, 1) for _ in range(2)
    ]
    found = episode_metrics(played, "val")
    assert (found["val/A/pass@1"], found["val/A/pass@2"]) == (0.5, 0.5)
    assert "val/A/pass@4" not in found
    puzzles = outcomes(one.to_json() for one in played)
    assert sorted(puzzles.values()) == [(2, 0), (2, 2)]


def test_scores_have_the_penalty_and_rewards_do_not():
    found = episode_metrics(some(), "val")
    assert found["val/A/reward"] == pytest.approx(0.5 / 4)
    assert found["val/A/score"] == pytest.approx(0.4 / 4)


def test_pass_at_k_is_over_the_attempts_at_a_puzzle():
    found = episode_metrics(some(), "val")
    assert found["val/A/success"] == found["val/A/pass@1"] == 0.25
    assert found["val/A/pass@2"] == found["val/A/pass@any"] == 0.5


def test_episodes_that_failed_technically_do_not_count():
    broken = episode(success=False, stop=StopReason.ERROR)
    found = episode_metrics([*some(), broken], "val")
    assert found.pop("val/A/errors") == 1
    clean = episode_metrics(some(), "val")
    assert clean.pop("val/A/errors") == 0
    assert found == clean
    assert episode_metrics([broken], "val") == {"val/A/episodes": 0, "val/A/errors": 1}


def test_tags_are_reported_apart_and_pooled_together():
    others = [replace(played, tag="B", success=True) for played in some()]
    found = episode_metrics([*some(), *others], "val")
    assert (found["val/A/success"], found["val/B/success"]) == (0.25, 1.0)
    pooled = pooled_metrics([*some(), *others], "all")
    assert pooled["all/success"] == 0.625
    # Equal puzzle seeds of different environments are different puzzles.
    assert pooled["all/pass@any"] == pytest.approx(3 / 4)
    assert "all/pass@4" not in pooled


def test_an_episode_that_had_no_turn_counts_as_not_solved():
    empty = episode(stop=StopReason.CONTEXT, puzzle=2)
    found = episode_metrics([*some(), empty], "val")
    assert found["val/A/success"] == pytest.approx(1 / 5)
    assert found["val/A/num_turns"] == pytest.approx(5 / 5)

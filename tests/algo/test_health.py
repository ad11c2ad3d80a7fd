"""What goes wrong slowly is named, and only that."""

import json

import pytest

from spa.algo.health import FallingGuard, Health, StepHealth
from spa.evaluation.episode_metrics import ends_in_a_loop, looping_share
from spa.recipes.ppo_health import step_health

GOOD = {"kept": 4, "spread": 0.5, "success": 0.4, "episodes": 64, "faults": 0.0, "repetition": 0.0}


def after(*steps: dict) -> Health:
    health = Health()
    for step in steps:
        health = health.observe(StepHealth(**(GOOD | step)))
    return health


@pytest.mark.parametrize(
    ("name", "bad", "times"),
    [
        ("nothing_to_learn", {"kept": 0}, 5),
        ("collapsed_spread", {"spread": 0.01}, 10),
        ("low_success", {"validation": 0.0}, 5),
        ("failing_episodes", {"faults": 0.5}, 3),
        ("repetition", {"repetition": 0.3}, 3),
    ],
)
def test_each_trouble_has_its_name_and_its_patience(name, bad, times):
    healthy = [{}] * 10
    assert after(*healthy, *[bad] * (times - 1)).reasons == {}
    assert list(after(*healthy, *[bad] * times).reasons) == [name]
    assert after(*healthy, *[bad] * times, {"validation": 0.5}).reasons == {}


def test_steps_without_validation_do_not_break_the_streak_of_low_ones():
    low, none = {"validation": 0.0}, {"validation": None}
    assert list(after(*[low, none] * 5).reasons) == ["low_success"]


def test_falling_success_is_measured_from_the_best_five_steps():
    guard = FallingGuard()
    for success in [0.4] * 5 + [0.1] * 3:
        guard = guard.observe(success, 64)
    assert guard.reason is None  # (0.4 * 2 + 0.1 * 3) / 5 = 0.22, above half of 0.4
    guard = guard.observe(0.05, 64)
    assert (
        guard.reason is not None
        and "last 5 steps fell to 15%; its best mean was 40%" in guard.reason
    )
    # a step of four episodes says little: 0.3 is below 4 standard errors
    assert guard.observe(0.05, 4).reason is None
    for success in (0.05, 0.0):
        # there was nothing to lose
        assert FallingGuard(best=0.05, episodes=64, last=(success,) * 5).reason is None


def test_steps_whose_episodes_all_failed_say_nothing_of_success_and_spread():
    failed = {"episodes": 0, "success": 0.0, "spread": 0.0, "kept": 0, "faults": 1.0}
    health = after(*[{}] * 10, *[failed, failed, {}] * 6)
    assert health.reasons == {}


def test_skills_of_fine_tuning_that_ppo_unlearns_are_named():
    """What the demo once did without a word: format .98 -> .86, observations .99 -> .70."""
    fine = {"format": 0.98, "observations": 0.99}
    slow = [{"format": 0.98 - 0.002 * i, "observations": 0.99 - 0.01 * i} for i in range(40)]
    assert after(*[fine] * 10, *slow[:8]).reasons == {}
    assert list(after(*[fine] * 10, *slow[:15]).reasons) == ["falling_observations"]
    told = after(*[fine] * 10, *slow).reasons
    assert set(told) == {"falling_format", "falling_observations"}
    assert "its best mean was 98%" in told["falling_format"]


def test_predictions_that_ppo_unlearns_are_named():
    """What the demo once did without a word: predictions .55 -> .11, format and observations unchanged."""
    slow = [
        {"format": 0.98, "observations": 0.99, "predictions": 0.55 - 0.01 * i} for i in range(40)
    ]
    assert after(*slow[:22]).reasons == {}
    told = after(*slow).reasons
    assert list(told) == ["falling_predictions"]
    assert "actor.replay" in told["falling_predictions"]


def test_responses_without_states_are_not_judged_by_them():
    assert after(*[{"format": None, "observations": None}] * 20).reasons == {}


def test_it_survives_a_checkpoint():
    health = after(
        {}, {"kept": 0, "repetition": 0.5}, {"kept": 0, "success": 0.1, "validation": 0.0}
    )
    again = Health.from_state(json.loads(json.dumps(health.state())))
    assert again == health
    skilled = after(*[{"format": 0.9, "observations": 0.8, "predictions": 0.5}] * 6)
    assert Health.from_state(json.loads(json.dumps(skilled.state()))) == skilled
    assert again.empty.run == 2 and again.falling.last == (0.4, 0.4, 0.1)


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("a" * 48, True),
        ("a" * 47, False),
        ("I go left and then right. " * 4, True),
        ("I go left and then right. " * 3 + "I go up now, to see it.", False),
        (
            "The player is at (0, 1). The goal is at (3, 3). Holes are at (1, 1), (2, 3) and (3, 0). I go Down.",
            False,
        ),
        ("word " * 9, False),
        ("word " * 10, True),
    ],
)
def test_loops(text, loop):
    assert ends_in_a_loop(text) is loop


def test_only_responses_that_were_cut_off_can_be_loops():
    loop = "no " * 40
    assert looping_share([(loop, True), (loop, False), ("fine", True), ("fine", False)]) == 0.25
    assert looping_share([]) == 0.0


def test_the_format_of_base_responses_is_watched():
    told = step_health({"train/Lake/episodes": 8.0, "train/Lake/format_rate": 0.25})
    assert (told.format, told.observations) == (0.25, None)


def test_tags_may_have_slashes():
    told = step_health({"train/ALE/Lake/episodes": 8.0, "train/ALE/Lake/format_rate": 0.25})
    assert told.format == 0.25

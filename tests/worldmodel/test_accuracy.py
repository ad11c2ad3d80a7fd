import pytest
from hypothesis import given
from hypothesis import strategies as st
from worldmodel_examples import make_episode, make_turn, response_to

from spa.evaluation.outcomes import outcome_of
from spa.types import StopReason
from spa.worldmodel.accuracy import score_state, state_units, world_model_metrics

BEFORE = "#P_#\nPlayer (P) at (0,1)."
AFTER = "#_P#\nPlayer (P) at (0,2)."


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("#_P\nPlayer at (0,2)", ["#", "_", "P", "Player", "at", "(0,2)"]),
        ("WALL\nW.GC", list("WALLW.GC")),  # capitals only: a drawing
        ("1 . | 3 4", list("1.|34")),
        ("16 _ 2 128", ["16", "_", "2", "128"]),  # one tile, one unit
        ("12_4", list("12_4")),
        (
            "box (X) is at (10, -3), goal at (1,2,3)",
            ["box", "(", "X", ")", "is", "at", "(10,-3)", ",", "goal", "at", "(1,2,3)"],
        ),
        ("Price: 12.50 dollars", ["Price", ":", "12.50", "dollars"]),
        ("玩家在 (1,1)", [*"玩家在", "(1,1)"]),
        ("", []),
        (" \n\n", []),
    ],
)
def test_units(text, units):
    assert state_units(text) == units


@given(st.text())
def test_units_hold_all_that_is_not_space(text):
    assert "".join(state_units(text)) == "".join(text.split())


def test_the_truth_scores_full():
    score = score_state(f"\n{AFTER}\n", AFTER, BEFORE)
    # places: 4 cells, and Player ( P ) at (0,1) . ; changed: two cells and one coordinate
    assert (score.exact, score.units, score.units_right) == (True, 11, 11)
    assert (score.changed, score.changed_predicted, score.changed_right) == (3, 3, 3)
    assert (score.changed_precision, score.changed_recall, score.changed_f1) == (1, 1, 1)


def test_copying_gets_most_units_and_no_change():
    score = score_state(BEFORE, AFTER, BEFORE)
    assert (score.exact, score.units, score.units_right) == (False, 11, 8)
    assert (score.changed, score.changed_predicted, score.changed_right) == (3, 0, 0)
    assert score.changed_f1 == 0


def test_half_right():
    score = score_state("#_P#\nPlayer (P) at (0,3).", AFTER, BEFORE)
    assert (score.units_right, score.changed, score.changed_predicted, score.changed_right) == (
        10,
        3,
        3,
        2,
    )
    assert score.unit_accuracy == pytest.approx(10 / 11)
    assert score.changed_f1 == pytest.approx(2 / 3)


def test_changes_that_did_not_happen_cost_precision():
    score = score_state("__P", "_P_", "_P_")
    assert (score.changed, score.changed_predicted, score.changed_right) == (0, 2, 0)
    score = score_state("P__", "P_P", "_PP")
    # truth changes places 0 and 1; the prediction changes all three
    assert (score.changed, score.changed_predicted, score.changed_right) == (2, 3, 2)
    assert score.changed_f1 == pytest.approx(4 / 5)


def test_a_broken_row_costs_only_itself():
    score = score_state("#_#\nX\n123", "#__\nXYZ\n123", None)
    assert (score.units, score.units_right) == (9, 6)
    score = score_state("####\n#_P\n####", "####\n#__P\n####", None)
    assert (score.units, score.units_right) == (12, 10)
    assert (score.changed, score.changed_predicted) == (0, 0)


def test_no_prediction_is_wrong_everywhere():
    score = score_state(None, AFTER, BEFORE)
    assert (score.exact, score.units, score.units_right) == (False, 11, 0)
    assert (score.changed, score.changed_predicted, score.changed_right) == (3, 0, 0)


@given(st.text("#_P1(), ab\n"), st.text("#_P1(), ab\n"), st.text("#_P1(), ab\n"))
def test_counts_are_consistent(predicted, truth, before):
    score = score_state(predicted, truth, before)
    assert 0 <= score.units_right <= score.units
    assert 0 <= score.changed_right <= min(score.changed, score.changed_predicted)
    if score.exact:
        assert (
            score.units_right == score.units
            and score.changed_right == score.changed == score.changed_predicted
        )
    perfect = score_state(truth, truth, before)
    assert perfect.exact and perfect.changed_recall == float(perfect.changed > 0)


def test_metrics_over_turns():
    turns = [
        make_turn(response_to("AB", "BA", "Left"), state="AB", next_state="BA"),  # both right
        make_turn(response_to("AB", "AB", "Left"), state="AB", next_state="BA"),  # copied
        make_turn(
            response_to("XX", "AB", "Left"), state="AB", next_state="AB", executed=()
        ),  # nothing happened, rightly said
        # malformed
        make_turn("<think>hm</think><answer>Left</answer>", state="AB", next_state="BA"),
    ]
    played_base = make_episode(turns, name="base", mode="base")
    failed = make_episode(turns, name="failed", stop=StopReason.ERROR)
    metrics = world_model_metrics(
        [make_episode(turns[:1]), make_episode(turns[1:]), played_base, failed]
    )
    assert metrics == pytest.approx(
        {
            "wm/turns": 4,
            "wm/format_rate": 3 / 4,
            "wm/obs_exact": 2 / 4,
            "wm/prediction_em": 2 / 4,
            "wm/pred_unit_acc": 4 / 8,
            "wm/changed_acc": 2 / 6,
            "wm/changed_f1": 2 * 2 / (6 + 2),
            "wm/copy_exact": 1 / 4,
        }
    )


def test_copying_gets_nothing_for_a_malformed_turn_in_which_nothing_happened():
    still = make_turn("Left", state="AB", next_state="AB", executed=())
    said = make_turn(response_to("AB", "AB", "Left"), state="AB", next_state="AB")
    episode = make_episode([still, said])
    metrics = world_model_metrics([episode])
    assert (metrics["wm/format_rate"], metrics["wm/copy_exact"]) == (0.5, 0.5)
    assert outcome_of(episode).unchanged == 1


def test_a_malformed_turn_gets_nothing_for_a_right_block():
    text = response_to("AB", "BA", "Left").replace("</think>", "")
    turn = make_turn(text, state="AB", next_state="BA")
    assert turn.response.prediction == "BA"
    metrics = world_model_metrics([make_episode([turn])])
    assert (metrics["wm/obs_exact"], metrics["wm/prediction_em"], metrics["wm/changed_acc"]) == (
        0,
        0,
        0,
    )


def test_no_turns_no_claims():
    assert world_model_metrics([]) == {"wm/turns": 0}

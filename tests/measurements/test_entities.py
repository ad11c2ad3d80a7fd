"""Entities of state texts, and the agreement of drawing and sentence."""

import pytest

from spa.envs.registry import make_env
from spa.seeds import stream
from spa_measurements.entities import (
    Agreement,
    entities,
    entity_scores,
    grid_cells,
    named,
    sentence_entities,
)

LAKE = "holes (O) are at (0,1) (1,0); goal (G) is at (2,2); player (P) is at (0,1) in a hole."


def test_sentence_by_hand():
    assert sentence_entities(LAKE) == {
        "P": {"(0,1)", "in a hole"},
        "G": {"(2,2)"},
        "O": {"(0,1)", "(1,0)"},
    }


def test_lines_with_words_are_no_grid():
    assert entities("Up (U): GB WW\nDown (D): OO YY") == {}
    assert entities("_P\nG_")["P"] == {"(0,1)"}
    assert entities("дверь закрыта") == {}


def test_denied_entity_has_no_cells():
    assert sentence_entities("Player (P) is at (0,1); no holes (O).") == {
        "P": {"(0,1)"},
        "O": frozenset(),
    }


def test_cells_with_digits_and_words_for_names():
    assert sentence_entities("Filled cells are (1,2)=3 (1,4)=2; empty cells are at (1,1).") == {
        "filled cells": {"(1,2)=3", "(1,4)=2"},
        "empty cells": {"(1,1)"},
    }
    assert sentence_entities("2 at (0,0) (2,2); empty: (0,1).") == {
        "2": {"(0,0)", "(2,2)"},
        "empty": {"(0,1)"},
    }


def test_drawing_without_sentence_gives_cells_per_symbol():
    assert entities("P_\n_G") == {"P": {"(0,0)"}, "_": {"(0,1)", "(1,0)"}, "G": {"(1,1)"}}
    assert grid_cells("16 _\n2 128")[1, 1] == "128"
    assert grid_cells("| 1 . | . 2") == {(0, 0): "1", (0, 1): ".", (1, 0): ".", (1, 1): "2"}


@pytest.mark.parametrize(
    ("env_type", "options"),
    [
        ("frozen_lake", {"is_slippery": False}),
        ("sokoban", {"num_boxes": 2}),
        ("sudoku", {"board_size": 4, "clues": 8}),
        ("game_2048", None),
    ],
)
def test_true_states_agree_and_states_put_together_do_not(env_type, options):
    env, truths = make_env(env_type, options), []
    rng = stream(0, "test")
    for seed in range(60):
        env.reset(seed=seed)
        truths.append(env.state_text("grid_and_coords"))
        for _ in range(6):
            action = env.to_action(env.random_action(rng))
            assert action is not None
            _, _, ended, cut, _ = env.step(action)
            truths.append(env.state_text("grid_and_coords"))
            if ended or cut:
                break
    agreement = Agreement.learn(truths[:200])
    assert agreement is not None
    assert all(agreement.holds(text) for text in truths)
    env.reset(seed=100)
    grid = env.state_text("grid")
    env.reset(seed=101)
    other = env.state_text("grid_and_coords").splitlines()[-1]
    assert not agreement.holds(f"{grid}\n{other}")
    assert not agreement.holds(grid) and not agreement.holds(other) and not agreement.holds("")


def test_no_agreement_without_coordinates():
    assert Agreement.learn(["P_", "Target: 48"]) is None


def test_entity_scores_by_hand():
    before = "Player (P) is at (0,0); holes (O) are at (1,1) (2,2)."
    truth = "Player (P) is at (0,1); holes (O) are at (1,1) (2,2)."
    wrong = "Player (P) is at (0,0); holes (O) are at (1,1) (2,3)."
    scores = entity_scores([(truth, truth, before), (wrong, truth, before), (None, truth, before)])
    player, holes = scores["P"], scores["O"]
    assert player.exact == pytest.approx(1 / 3) and player.changed == 3
    assert player.changed_exact == pytest.approx(1 / 3)
    assert player.f1 == pytest.approx(2 * 1 / (2 + 2 + 1))
    assert holes.exact == pytest.approx(1 / 3) and holes.changed_exact is None
    assert holes.f1 == pytest.approx((4 + 2) / (4 + 4 + 2))
    assert list(named(scores, {"P": "player"})) == ["O", "player (P)"]

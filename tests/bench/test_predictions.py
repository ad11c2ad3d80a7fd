"""Drift and replay of predicted states, worked by hand on a lake of four cells."""

from dataclasses import replace

import pytest

from spa.envs.registry import make_env
from spa_bench.diagnose.findings import diagnose
from spa_bench.diagnose.predictions import drift
from spa_bench.diagnose.replay import Game, replayed
from spa_bench.diagnose.rollouts import Rollout, read_row

RESPONSE = (
    "<think><observation>{}</observation> <prediction>{}</prediction></think><answer>{}</answer>"
)


def rollout(states, responses, **fields):
    chat = tuple(("assistant", RESPONSE.format(*response)) for response in responses)
    return Rollout(
        where="row 1", stack="chat", chat=chat, group="g", states=tuple(states), **fields
    )


def test_drift_is_counted_by_actions_ahead_and_by_turn_beside_copying():
    walk = rollout(
        ["P__G", "_P_G", "_P_G", "___√"],
        [("P__G", "_P_G", "Right"), ("_P_G", "__PG", "Up"), ("_P_G", "__PG", "Right || Right")],
    )
    found = drift([walk])
    # One action: the first is right; the second says P moved, but all 4 cells stayed: 2 of 8 cells are wrong.
    # Copying: 2 of 4 cells changed in the first, none in the second: 2 of 8 cells are wrong, one state is right.
    one, two = found["by_actions"]
    assert (one["at"], one["predictions"], one["right"]) == (1, 2, 1)
    assert (one["with_states"], one["cells_wrong"], one["copy_right"], one["copy_cells_wrong"]) == (
        2,
        0.25,
        1,
        0.25,
    )
    # Two actions: truth ___√, said __PG: 2 of 4 wrong; copying _P_G: 2 of 4 wrong.
    assert two == {
        "at": 2, "predictions": 1, "right": 0, "with_states": 1, "cells_wrong": 0.5, "copy_right": 0, "copy_cells_wrong": 0.5,
    }  # fmt: skip
    assert [(example["at"], example["right"]) for example in found["by_turn"]] == [
        (1, 1),
        (2, 0),
        (3, 0),
    ]


def test_a_chat_without_states_is_counted_by_the_actions_of_its_plans():
    told = [
        {"role": "user", "content": "P_"},
        {"role": "assistant", "content": RESPONSE.format("P_", "_P", "a || b")},
    ]
    chat = read_row([*told, {"role": "user", "content": "now: _P"}], "row 1")
    assert drift([chat]) == {
        "by_actions": [{"at": 2, "predictions": 1, "right": 1}],
        "by_turn": [{"at": 1, "predictions": 1, "right": 1}],
    }
    assert drift([read_row(told, "row 1")]) == {"by_actions": [], "by_turn": []}  # nothing came


def test_actions_that_the_record_says_were_taken_count_not_those_of_the_answer():
    walk = rollout(["P_", "_P"], [("P_", "_P", "a || b")], actions=(("a",),))
    assert drift([walk])["by_actions"][0]["at"] == 1


def test_predictions_worse_than_copying_are_a_finding():
    walk = rollout(["P_", "P_"], [("P_", "_P", "Up")])
    assert (
        "0 predictions are correct, but copies of the state before the actions would be correct 1 times"
        in diagnose([walk])["findings"]
    )


LAKE = Game(
    env=make_env("frozen_lake", {"is_slippery": False}),
    state_text="grid",
    action_sep="||",
    max_actions_per_turn=5,
    max_actions_per_traj=10,
)


def walked(seed, *plans):
    """The states that plans lead to."""
    LAKE.env.reset(seed=seed, options={"noise_seed": 0})
    states = [LAKE.env.state_text("grid")]
    for plan in plans:
        for name in plan:
            LAKE.env.step(LAKE.env.to_action(name))  # pyright: ignore[reportArgumentType]
        states.append(LAKE.env.state_text("grid"))
    return states


def a_way(seed, moves=2):
    """Moves of the expert that do not end the game, one turn each."""
    LAKE.env.reset(seed=seed)
    way = LAKE.env.expert_actions(10)
    assert len(way) > moves
    return [(name,) for name in way[:moves]]


def chat_of(told, plans, **row):
    messages = []
    for number, plan in enumerate(plans):
        messages.append({"role": "user", "content": told[number]})
        messages.append(
            {"role": "assistant", "content": f"<think></think><answer>{' || '.join(plan)}</answer>"}
        )
    return read_row({"messages": messages, **row}, "row 1")


def test_a_replay_finds_the_states_that_the_text_does_not_hold():
    plans = a_way(9)
    rewards = [0.0] * len(plans)
    found = replayed(chat_of(["Move."] * 2, plans, seed=9, turn_rewards=rewards), LAKE)
    assert list(found.rollout.states) == walked(9, *plans) and found.rollout.actions == tuple(plans)
    assert (found.by, found.differs) == ("rewards", None)


def test_predictions_are_measured_on_the_states_of_a_replay():
    (plan,) = a_way(9, 1)
    before, after = walked(9, plan)
    response = RESPONSE.format(before, after, plan[0])
    row = {
        "messages": [
            {"role": "user", "content": "Move."},
            {"role": "assistant", "content": response},
        ],
        "seed": 9,
    }
    alone, again = diagnose([read_row(row, "row 1")]), diagnose([read_row(row, "row 1")], game=LAKE)
    assert "prediction" not in alone["world_model"]
    assert again["world_model"]["prediction_right"] == 1 == again["drift"]["by_actions"][0]["right"]
    assert again["replay"]["unchecked"] == 1 and "cannot be checked" in again["findings"][0]


def test_a_replay_says_at_which_turn_it_stops_agreeing():
    plans = a_way(9, 2)
    states = walked(9, *plans)
    good = replayed(chat_of([f"State:\n{state}" for state in states], plans, seed=9), LAKE)
    assert (good.by, good.differs) == ("text", None)
    bad = replayed(chat_of([f"State:\n{states[0]}", "State:\nelsewhere"], plans, seed=9), LAKE)
    assert (bad.by, bad.differs, list(bad.rollout.states)) == ("text", 2, states[:1])
    paid = replayed(chat_of(["Move."] * 2, plans, seed=9, turn_rewards=[0.0, 1.0]), LAKE)
    assert (paid.by, paid.differs, list(paid.rollout.states)) == ("rewards", 3, states[:2])
    report = diagnose([bad.rollout, good.rollout], game=LAKE)
    assert report["replay"] == {
        "played": 2, "without_seed": 0, "other_tag": 0, "by": {"states": 2}, "unchecked": 0, "differ": [],
    }  # fmt: skip


def test_nothing_is_measured_after_a_difference_at_the_first_turn():
    (plan,) = a_way(9, 1)
    before, after = walked(9, plan)
    record = rollout(["elsewhere", after], [(before, after, plan[0])], seed=9)
    found = diagnose([record], game=LAKE)
    assert found["replay"]["differ"][0]["turn"] == 1
    assert found["world_model"] == {} and found["drift"]["by_turn"] == []


def test_rollouts_of_another_game_are_not_replayed():
    one = replace(chat_of(["Move."], a_way(9, 1), seed=9), tag="Bandit")
    game = replace(LAKE, others=frozenset({"Bandit"}))
    report = diagnose([one], game=game)
    assert report["replay"]["other_tag"] == 1 and report["replay"]["played"] == 0
    assert "another game" in report["findings"][0]


def test_a_record_that_goes_on_after_the_end_of_the_game_differs_there():
    LAKE.env.reset(seed=9)
    way = LAKE.env.expert_actions(10)
    record = rollout(
        [*walked(9, way), "P"], [("", "", " || ".join(way))] * 2, seed=9, actions=(way, ("Up",))
    )
    assert replayed(record, LAKE).differs == 3
    assert len(replayed(record, LAKE).rollout.states) == 2  # what comes after is not measured


def test_rollouts_without_a_seed_are_not_replayed():
    report = diagnose([chat_of(["Move."], [("Up",)])], game=LAKE)
    assert report["replay"]["without_seed"] == 1 and "name no seed" in report["findings"][0]


def test_responses_without_an_answer_block_are_actions_themselves():
    row = {
        "messages": [
            {"role": "user", "content": "Move."},
            {"role": "assistant", "content": " right\n"},
        ],
        "seed": 9,
    }
    assert list(replayed(read_row(row, "row 1"), LAKE).rollout.states) == walked(9, ["Right"])


def test_a_game_that_fails_costs_its_rollout():
    class Broken(type(LAKE.env)):
        def step(self, action):
            raise RuntimeError("no ice")

    game = Game(
        env=Broken(is_slippery=False),  # pyright: ignore[reportCallIssue]
        state_text="grid",
        action_sep="||",
        max_actions_per_turn=5,
        max_actions_per_traj=9,
    )
    found = replayed(chat_of(["Move."], [("Up",)], seed=9), game)
    assert found.differs == 1 and "no ice" in found.fault
    assert "no ice" in diagnose([found.rollout], game=game)["findings"][0]


@pytest.mark.parametrize("place", ["info", "extra_info"])
def test_the_seed_may_stand_where_stacks_keep_what_is_not_theirs(place):
    row = {
        "messages": [{"role": "assistant", "content": "Up"}],
        place: {"seed": 4, "noise_seed": 2},
    }
    found = read_row(row, "row 1")
    assert (found.seed, found.noise_seed) == (4, 2)

"""Several imagined plans, each with its predicted state, then the choice: written, read, relabelled, shuffled."""

from dataclasses import replace
from functools import partial

import pytest
from helpers.play import counted_tries, groups, play
from hypothesis import given
from hypothesis import strategies as st

from spa.config.load import load_config
from spa.envs.registry import make_env
from spa.errors import ConfigError
from spa.examples.counterfactual import SOURCE
from spa.examples.source import Puzzles
from spa.formats.plans import imagined, imagined_plans, read_options
from spa.formats.registry import parse_response, world_model_response
from spa.policies.scripted import ScriptedEngine, random_engine
from spa.prompts.render import Prompter
from spa.recipes import setup
from spa.types import Episode
from spa.worldmodel.branches import turn_options
from spa.worldmodel.examples import episode_examples, shuffle_next_states
from spa_report.replay import replay

LAKE = {"is_slippery": False}
plans = st.lists(st.sampled_from(["Left", "Down", "Right", "Up"]), min_size=1, max_size=3).map(
    tuple
)
states = st.sampled_from(
    ["_P_\n__O\nOG_", "goal (G) is at (0,0).", "player (P) is at (2,1) on the goal."]
)


@given(st.lists(st.tuples(plans, states), min_size=1, max_size=4), st.integers(0, 3))
def test_what_was_imagined_is_read_back(options, number):
    chosen, state = options[number % len(options)]
    thoughts = f"{imagined_plans(options)}I do {', then '.join(chosen)}. "
    text = world_model_response("here", thoughts, state, " || ".join(chosen), order="choose_plan")
    response = parse_response(text, mode="add_worldmodel", order="choose_plan")
    assert response.well_formed and response.options == tuple(options)
    assert (response.prediction, response.actions) == (state, chosen)


def test_a_choice_that_was_not_imagined_is_malformed_and_still_counts():
    thoughts = f"{imagined_plans([(('Left',), 'there')])}I do Up. "
    response = parse_response(
        world_model_response("here", thoughts, "there", "Up", order="choose_plan"),
        mode="add_worldmodel",
        order="choose_plan",
    )
    assert not response.well_formed and response.actions == ("Up",) and len(response.options) == 1


@pytest.mark.parametrize(
    "thoughts", ["", "I could do Left", "I could do Left:\n", "I could do :\nthere\n", "free words"]
)
def test_what_is_no_option_is_none(thoughts):
    assert read_options(thoughts) == ()


def episodes(make=lambda tag: make_env("frozen_lake", LAKE), **options) -> list[Episode]:
    return play(
        groups(4, 1),
        random_engine(max_actions=2),
        make=make,
        mode="add_worldmodel",
        response_format="choose_plan",
        **options,
    )


def choices(episode: Episode, count: int = 3) -> list[tuple]:
    prompter = Prompter(
        mode="add_worldmodel", state_text="coords", response_format="choose_plan", imagined_plans=count
    )  # fmt: skip
    found = turn_options(
        episode, make=lambda: make_env("frozen_lake", LAKE), prompter=prompter, plans=4
    )
    # 2: of the executed plan
    assert all(count >= sum(len(plan) for plan, _ in own) - 2 for own, count in found)
    return [own for own, _ in found]


def test_options_are_true_hold_what_was_executed_and_do_not_favour_a_place():
    places = []
    for episode in episodes():
        assert Episode.from_json(episode.to_json()) == episode
        for index, (turn, options) in enumerate(zip(episode.turns, choices(episode), strict=True)):
            assert 2 <= len(options) <= 3 and len({plan for plan, _ in options}) == len(options)
            places.append([plan for plan, _ in options].index(turn.executed))
            for plan, state in options:
                env = make_env("frozen_lake", LAKE)
                env.reset(seed=episode.puzzle_seed, options={"noise_seed": episode.noise_seed})
                for name in (
                    *(name for past in episode.turns[:index] for name in past.executed),
                    *plan,
                ):
                    env.step(env.to_action(name))  # type: ignore[arg-type]
                assert state == env.state_text("coords")
    assert len(set(places)) > 1


def test_examples_list_the_options_and_choose_what_was_executed():
    (episode, *_) = episodes()
    options = choices(episode)
    examples, dropped = episode_examples(episode, action_sep="||", options=options)
    assert len(examples) == len(episode.turns) and not dropped
    for example, known in zip(examples, options, strict=True):
        response = parse_response(example.response, mode="add_worldmodel", order="choose_plan")
        assert response.well_formed and response.options == known
        assert (response.actions, response.prediction) == (example.executed, example.next_state)
    later = examples[-1].prompt if len(examples) > 1 else ()
    assert all(
        "I could do " in message["content"] for message in later if message["role"] == "assistant"
    )


def test_the_shuffled_control_deals_every_imagined_state_and_says_the_same_of_the_choice():
    examples = [
        example
        for episode in episodes()
        for example in episode_examples(episode, action_sep="||", options=choices(episode))[0]
    ]
    shuffled = shuffle_next_states(examples, seed=1)
    pairs = [
        (imagined(a.response), imagined(b.response))
        for a, b in zip(examples, shuffled, strict=True)
    ]
    before, after = ([state for pair in pairs for _, state in pair[side]] for side in (0, 1))
    assert (
        sorted(before) == sorted(after)
        and sum(a == b for a, b in zip(before, after, strict=True)) < len(before) / 3
    )
    for example in shuffled:
        response = parse_response(example.response, mode="add_worldmodel", order="choose_plan")
        assert response.well_formed and (example.executed, response.prediction) in response.options


def test_the_prompt_asks_for_as_many_plans_as_configured_and_the_viewer_shows_them():
    env = make_env("frozen_lake", LAKE)
    env.reset(seed=1)
    prompter = Prompter(mode="add_worldmodel", response_format="choose_plan", imagined_plans=3)
    assert prompter.first_messages(env)[1]["content"].count("I could do [some actions]:") == 3

    def response(_):
        options = [(("Left",), "goal (G) is at (0,0)."), (("Up",), "goal (G) is at (1,0).")]
        return world_model_response(
            "here",
            f"{imagined_plans(options)}I do Up. ",
            "goal (G) is at (1,0).",
            "Up",
            order="choose_plan",
        )

    (episode, *_) = play(
        groups(1, 1),
        ScriptedEngine(response),
        mode="add_worldmodel",
        response_format="choose_plan",
        max_turn=1,
    )
    shown = replay(episode.to_json())["turns"][0]["options"]
    assert [option["plan"] for option in shown] == ["Left", "Up"] and all(
        option["state"] for option in shown
    )
    plain = replace(episode.turns[0], response=replace(episode.turns[0].response, options=()))
    assert "options" not in replace(episode, turns=(plain,)).to_json()["turns"][0]["response"]


def test_other_states_than_the_true_ones_are_refused():
    with pytest.raises(ConfigError, match="must be ground_truth"):
        load_config(
            "base", ["agent_proxy.response_format=choose_plan", "generate.states=random_coords"]
        )


def test_plans_of_turns_without_an_example_are_counted(monkeypatch):
    played = counted_tries(monkeypatch)
    cfg = load_config("tiny", ["agent_proxy.response_format=choose_plan"])
    worker = setup.make_worker(cfg, None, mode="add_worldmodel")
    lake = partial(worker.make_env, "FrozenLakeNoSlip")
    (episode, *_) = (one for one in episodes(lambda tag: lake()) if len(one.turns) > 1)
    first, *rest = episode.turns
    # A malformed response gives no example.
    spoilt = replace(first, response=parse_response("Left", mode="add_worldmodel"))
    episode = replace(episode, tag="FrozenLakeNoSlip", turns=(spoilt, *rest))
    made, _ = SOURCE.of_episode(cfg, Puzzles(worker=worker, held_out=frozenset()), episode)
    assert len(made) == len(rest)
    assert sum(example.extra["tried"] for example in made) == sum(played)

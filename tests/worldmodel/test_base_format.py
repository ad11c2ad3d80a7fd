"""Rows in the base format are what a player of that format would have been told and have said."""

import numpy as np
from helpers.play import play, says
from worldmodel_examples import response_to

from spa.envs.pool import group_specs
from spa.envs.registry import make_env
from spa.prompts.render import Prompter
from spa.worldmodel.base_format import in_base_format
from spa.worldmodel.examples import episode_examples

SETTINGS = {
    "state_text": "grid",
    "show_legal_actions": True,
    "max_turn": 12,
    "max_actions_per_traj": 40,
}


def test_each_turn_lists_the_actions_that_were_legal_then():
    specs = group_specs("test", base_seed=3, step=0, tags=["game_2048"], n_groups=[1], group_size=1)
    rng = np.random.default_rng(0)
    answers = [" || ".join(rng.choice(["Left", "Right", "Up", "Down"], size=3)) for _ in range(12)]

    def make(tag):
        return make_env("game_2048", {})

    told = says(*(response_to("s", "t", own).removeprefix("<think>") for own in answers))
    (episode,) = play(specs, told, make=make, mode="add_worldmodel", **SETTINGS)
    examples, _ = episode_examples(episode, action_sep="||")
    env, prompter = make("game_2048"), Prompter(mode="base", **SETTINGS)
    env.reset(
        seed=episode.puzzle_seed, options={"noise_seed": episode.noise_seed, "validation": False}
    )
    found = in_base_format(examples, episode, prompter, env)
    (same,) = play(
        specs,
        says(*(example.response.removeprefix("<think>") for example in found)),
        make=make,
        **SETTINGS,
    )
    assert [turn.executed for turn in same.turns] == [turn.executed for turn in episode.turns]
    assert (
        *found[-1].prompt,
        {"role": "assistant", "content": found[-1].response},
    ) == same.messages
    lists = {
        line
        for said in same.messages
        for line in said["content"].splitlines()
        if line.startswith("Legal")
    }
    assert len(lists) > 1


def lake_examples(thoughts="move", **settings):
    """The base-format examples of three steps to the left on a lake."""
    specs = group_specs("test", base_seed=3, step=0, tags=["lake"], n_groups=[1], group_size=1)

    def make(tag):
        return make_env("frozen_lake", {"size": 4, "is_slippery": False})

    text = response_to("s", "t", "Left", thoughts).removeprefix("<think>")
    told = says(text, text, text)
    settings = {"state_text": "grid", "max_turn": 3, **settings}
    (episode,) = play(specs, told, make=make, mode="add_worldmodel", **settings)
    env = make("lake")
    env.reset(
        seed=episode.puzzle_seed, options={"noise_seed": episode.noise_seed, "validation": False}
    )
    examples, _ = episode_examples(episode, action_sep="||")
    return in_base_format(examples, episode, Prompter(mode="base", **settings), env)


def test_without_a_history_each_prompt_has_the_rules_and_one_state():
    examples = lake_examples(history=False)
    assert len(examples) == 3
    for number, example in enumerate(examples, start=1):
        assert [message["role"] for message in example.prompt] == ["system", "user"]
        assert f"Turn {number}:" in example.prompt[-1]["content"]


def test_imagined_plans_and_their_states_are_left_out():
    thoughts = "Hm.\nI could do Down:\nunknown\nI could do Left:\nunknown\nI do Down."
    for example in lake_examples(thoughts, response_format="choose_plan"):
        assert example.response == "<think>Hm. I do Left.</think><answer>Left</answer>"

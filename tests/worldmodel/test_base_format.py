"""Rows in the base format are what a player of that format would have been told and have said."""

import numpy as np
from helpers.play import play, says
from worldmodel_examples import reply

from spa.envs.pool import group_specs
from spa.envs.registry import make_env
from spa.prompts.render import Prompter
from spa.worldmodel.base_format import in_base_format
from spa.worldmodel.rows import episode_rows

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

    told = says(*(reply("s", "t", own).removeprefix("<think>") for own in answers))
    (episode,) = play(specs, told, make=make, mode="add_worldmodel", **SETTINGS)
    rows, _ = episode_rows(episode, action_sep="||")
    env, prompter = make("game_2048"), Prompter(mode="base", **SETTINGS)
    env.reset(
        seed=episode.puzzle_seed, options={"noise_seed": episode.noise_seed, "validation": False}
    )
    found = in_base_format(rows, episode, prompter, env)
    (same,) = play(
        specs, says(*(row.response.removeprefix("<think>") for row in found)), make=make, **SETTINGS
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

"""Turns and separators that belong to a tag and not to the whole run."""

import pytest
from helpers.play import says

from spa.config.load import load_config
from spa.errors import ConfigError
from spa.policies.named import expert_engine
from spa.policies.scripted import random_engine
from spa.recipes import setup
from spa.types import Prompt
from spa.worldmodel.examples import episode_examples

TAGS = [
    "es_manager.train.env_configs.tags=[FrozenLakeNoSlip,Sudoku]",
    "es_manager.train.env_groups=2",
]
# groups of one have no spread
KEEP_ALL = "actor_rollout_ref.rollout.rollout_filter_include_zero=true"
OWN = [*TAGS, "custom_envs.Sudoku.max_turn=2", "custom_envs.Sudoku.action_sep=';'"]


def played(overrides, engine, mode="add_worldmodel"):
    cfg = load_config(
        "base", [*overrides, "es_manager.train.group_size=1", "ppo_mini_batch_size=1", KEEP_ALL]
    )
    player = setup.make_worker(cfg, None, mode=mode)
    specs = setup.episode_specs(cfg.es_manager.train, "train", base_seed=3, step=0)
    return cfg, {
        episode.tag: episode for episode in player.rollout(engine, specs, setup.train_sampling(cfg))
    }


def test_a_tag_has_its_own_turns_and_separator_and_the_others_keep_the_runs():
    nothing = "<think></think><answer>nothing</answer>"
    _, episodes = played(OWN, says(nothing), mode="base")
    assert {tag: len(episode.turns) for tag, episode in episodes.items()} == {
        "FrozenLakeNoSlip": 5,
        "Sudoku": 2,
    }
    said = {tag: episode.messages[1]["content"] for tag, episode in episodes.items()}
    assert "separated by ;; at most 10 actions and 2 turns" in said["Sudoku"]
    assert "separated by ||; at most 10 actions and 5 turns" in said["FrozenLakeNoSlip"]


def test_scripted_players_and_world_model_examples_use_the_separator_of_the_tag():
    cfg, episodes = played(OWN, random_engine(max_actions=5))
    for tag, sep in (("FrozenLakeNoSlip", " || "), ("Sudoku", " ; ")):
        turns = episodes[tag].turns
        assert any(len(turn.executed) > 1 for turn in turns) and all(
            turn.penalty == 0 for turn in turns
        )
        examples, dropped = episode_examples(episodes[tag], action_sep=cfg.action_sep(tag))
        assert not dropped
        for example in examples:
            assert example.response.endswith(f"<answer>{sep.join(example.executed)}</answer>")


@pytest.mark.parametrize("engine", [random_engine, expert_engine])
def test_scripted_players_keep_to_the_actions_of_the_tag(engine):
    choose = (
        "es_manager.train.env_configs.tags=[FrozenLakeNoSlip,Sudoku]",
        "custom_envs.Sudoku.max_actions_per_traj=1",
        "custom_envs.FrozenLakeNoSlip.max_actions_per_traj=1",
        "agent_proxy.response_format=choose_plan",
        "ctx_manager.mode=add_worldmodel",
    )
    _, episodes = played([*TAGS, *choose], engine(max_actions=5))
    for episode in episodes.values():
        assert all(turn.response.well_formed for turn in episode.turns)


def test_a_blank_separator_of_a_tag_is_refused():
    with pytest.raises(ConfigError, match=r"custom_envs\.Sudoku\.action_sep"):
        load_config("base", [*TAGS, "custom_envs.Sudoku.action_sep=' '"])


def test_prompts_separate_actions_as_the_run_does_unless_told():
    assert (
        Prompt.__dataclass_fields__["action_sep"].default
        == load_config("base").agent_proxy.action_sep
    )

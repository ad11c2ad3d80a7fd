"""Sample responses are copied by models, so they show what is wanted: moves that work, the plan, and where they lead."""

import pytest

from spa.config.load import load_config
from spa.envs.registry import make_env
from spa.formats.plans import plan_sentence
from spa.formats.registry import parse_response
from spa.prompts.render import SEEDS, Prompter, sample_response
from spa.recipes.prompters import make_prompter

BASE = load_config("base")


def sample(tag: str, **settings):
    spec = BASE.custom_envs[tag]
    prompter = Prompter(
        mode="add_worldmodel", max_actions_per_traj=spec.max_actions_per_traj, **settings
    )
    return parse_response(
        sample_response(make_env(spec.env_type, spec.env_config), prompter),
        mode="add_worldmodel",
        order=prompter.response_format,
    )


def test_a_hidden_world_has_no_sample_which_would_tell_its_moves():
    spec = BASE.custom_envs["HiddenDynamicsLake"]
    assert sample_response(make_env(spec.env_type, spec.env_config), Prompter()) == ""


@pytest.mark.parametrize("tag", sorted({*BASE.custom_envs} - {"HiddenDynamicsLake"}))
def test_a_sample_moves_the_game_and_names_its_plan(tag):
    response = sample(tag)
    assert response.well_formed
    assert response.prediction != response.observation
    assert response.think == plan_sentence(response.actions)


@pytest.mark.parametrize("tag", ["SimpleSokoban", "FrozenLakeNoSlip", "RubiksCube", "Sudoku"])
def test_a_sample_is_what_playing_it_gives_and_brings_the_goal_nearer_by_every_move(tag):
    spec, response = BASE.custom_envs[tag], sample(tag)
    assert len(response.actions) == 3
    for seed in SEEDS:
        env = make_env(spec.env_type, spec.env_config)
        env.reset(seed=seed)
        if env.state_text("grid_and_coords") == response.observation:
            break
    left = env.optimal_steps()
    assert left is not None
    for number, name in enumerate(response.actions, start=1):
        action = env.to_action(name)
        assert action is not None and env.step(action)[4]["action_is_effective"]
        assert (
            env.optimal_steps() == left - number
            or env.state_text("grid_and_coords") == response.prediction
        )
    assert env.state_text("grid_and_coords") == response.prediction


def test_nobody_slips_in_the_sample_of_a_slippery_lake():
    slippery, dry = sample("FrozenLake"), sample("FrozenLakeNoSlip")
    assert (slippery.observation, slippery.actions, slippery.prediction) == (
        dry.observation,
        dry.actions,
        dry.prediction,
    )


def test_the_shops_sample_searches_for_what_its_own_request_asks_for():
    response = sample("WebShop", max_actions_per_turn=1)
    request = str(response.observation).splitlines()[0]
    (action,) = response.actions
    words = action.removeprefix("search[").removesuffix("]").split()
    assert words and all(word in request for word in words)
    assert "Results, page 1" in str(response.prediction)


def test_the_sample_response_is_shown_where_the_preset_says_so_and_never_the_first_puzzle():
    for name, shown in (("_2_sokoban", True), ("demo", False)):
        cfg = load_config(name)
        tag = cfg.es_manager.train.env_configs.tags[0]
        assert bool(make_prompter(cfg, cfg.custom_envs[tag], "add_worldmodel").example) == shown
        assert not make_prompter(cfg, cfg.custom_envs[tag], "base").example
        assert cfg.seed.train > max(SEEDS) < cfg.seed.val


def test_an_instruction_that_shows_the_format_itself_is_not_contradicted_by_a_second_sample():
    """The original's world-model instructions end in a sample of their own."""
    own = "Push. Example: <think><observation>A</observation> Plan <prediction>B</prediction></think><answer>Up</answer>"
    cfg = load_config("base", [f"custom_envs.SimpleSokoban.env_instruction_add_worldmodel={own!r}"])
    prompter = make_prompter(cfg, cfg.custom_envs["SimpleSokoban"], "add_worldmodel")
    env = make_env("sokoban")
    env.reset(seed=5)
    text = prompter.first_messages(env)[1]["content"]
    # theirs, and the format that is asked
    assert text.count("</observation>") == 2 and "A sample reply" not in text

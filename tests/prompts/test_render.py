"""Prompts: true to the environment, true to the limits, and silent about coordinates where there are to be none."""

import re
from typing import Any

import pytest
from helpers.play import answer, one_group, play, says

from spa.config.load import load_config
from spa.envs.base import TextEnv
from spa.envs.registry import make_env
from spa.formats.registry import parse_response
from spa.prompts.render import Prompter, format_reward
from spa.recipes import setup
from spa_sweeps.methods import METHODS

CELL = re.compile(r"\(\s*\d+\s*,\s*\d+\s*\)")
GAMES: dict[str, dict[str, Any]] = {
    "frozen_lake": {"is_slippery": False},
    "sokoban": {"dim_x": 6, "dim_y": 6, "num_boxes": 1},
    "sudoku": {"clues": 12},
}


def reset(env_type: str, **options: Any) -> TextEnv:
    env = make_env(env_type, options)
    env.reset(seed=3)
    return env


def said(env: TextEnv, **settings: Any) -> str:
    """Everything that the model is told: the first messages and a later one."""
    prompter = Prompter(**settings)
    messages = [
        *prompter.first_messages(env),
        prompter.next_message(env, turn=2, actions_left=3, reward=-0.1),
    ]
    return "\n".join(message["content"] for message in messages)


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("mode", ["base", "add_worldmodel"])
def test_drawings_come_without_coordinates_and_coordinates_without_drawings(game, mode):
    env = reset(game, **GAMES[game])
    text = said(env, state_text="grid", mode=mode)
    assert not CELL.search(text)
    assert "coordinate" not in text.lower()
    assert env.state_text("grid") in text
    text = said(env, state_text="coords", mode=mode)
    assert CELL.search(text)
    assert env.state_text("grid") not in text
    assert "Symbols:" not in text
    text = said(env, state_text="grid_and_coords", mode=mode)
    assert env.state_text("grid") in text
    assert CELL.search(text)


@pytest.mark.parametrize("tag", ["SimpleSokoban", "FrozenLake", "Sudoku"])
def test_the_vanilla_baseline_on_drawings_sees_no_coordinates(tag):
    overrides = [
        f"es_manager.train.env_configs.tags=[{tag}]",
        f"es_manager.val.env_configs.tags=[{tag}]",
    ]
    cfg = load_config("base", [*overrides, *METHODS["vanilla_grid"].overrides])
    player = setup.make_worker(cfg, None, mode=cfg.ctx_manager.mode)
    specs = setup.episode_specs(cfg.es_manager.train, "train", base_seed=1, step=0)[:1]
    for episode in player.rollout(
        says(answer("Left"), answer("1,1,1")), specs, setup.train_sampling(cfg)
    ):
        assert not CELL.search("\n".join(message["content"] for message in episode.messages))
        assert len(episode.turns) == cfg.agent_proxy.max_turn


@pytest.mark.parametrize("arm", ["vanilla", "vanilla_wm", "spa", "spa_shuffled"])
def test_the_arms_of_a_comparison_see_the_same_states(arm):
    cfg, changed = load_config("demo"), load_config("demo", METHODS[arm].overrides)
    assert changed.state_text == cfg.state_text == "coords"
    assert changed.ctx_manager.mode == ("base" if arm == "vanilla" else "add_worldmodel")


@pytest.mark.parametrize("size", [4, 6, 10])
def test_the_range_of_coordinates_follows_the_board(size):
    text = said(reset("frozen_lake", size=size), state_text="coords")
    assert f"({size - 1},{size - 1})" in text
    text = said(reset("sokoban", dim_x=size + 2, dim_y=size + 3), state_text="coords")
    assert f"({size + 1},{size + 2})" in text
    assert (
        max(int(number) for cell in CELL.findall(text) for number in re.findall(r"\d+", cell))
        == size + 2
    )


@pytest.mark.parametrize("size", [4, 9])
def test_sudoku_says_how_large_it_is(size):
    text = said(reset("sudoku", board_size=size, clues=size * size - 4), state_text="coords")
    assert f"{size}x{size} Sudoku" in text
    assert f"({size},{size})" in text


def test_the_legend_follows_the_symbols_of_the_instance():
    cfg = load_config("base")
    spec = cfg.custom_envs["SokobanDifferentGridVocab"]
    env = reset(spec.env_type, **(spec.env_config or {}))
    text = said(env, state_text="grid_and_coords")
    assert (
        "Symbols: W wall, . empty, G target, C box on target, B box, A player, @ player on target."
        in text
    )
    assert "Player (A)" in text
    assert "#" not in text
    assert set(env.state_text("grid")) <= set("W.GCBA@\n")


def test_the_actions_follow_the_labels_of_the_instance():
    spec = load_config("base").custom_envs["SokobanDifferentActionVocab"]
    text = said(reset(spec.env_type, **(spec.env_config or {})))
    assert "Actions: Left, Right, Up, Down." in text


def test_environments_without_a_drawing_or_labels_have_no_such_lines():
    text = said(reset("sudoku", clues=12))
    assert "Symbols:" not in text
    assert "Actions:" not in text


def stated(text: str) -> tuple[int, int, int, int]:
    """(actions per turn, actions in all, turns, actions left) as the first prompt states them."""
    limits = re.search(
        r"At most (\d+) actions? per turn.*?; at most (\d+) actions? and (\d+) turns? in all\.",
        text,
    )
    left = re.search(r"Actions left: (\d+)\.", text)
    return (*map(int, limits.groups()), int(left.group(1)))


@pytest.mark.parametrize(
    ("per_turn", "in_all", "turns"), [(1, 10, 3), (3, 7, 5), (5, 4, 2), (2, 2, 1)]
)
def test_the_limits_that_are_stated_are_the_limits_that_are_enforced(per_turn, in_all, turns):
    settings = {"max_actions_per_turn": per_turn, "max_actions_per_traj": in_all, "max_turn": turns}
    blocked = answer(" || ".join(["Left", "Right"] * 6))
    (episode,) = play(
        one_group(),
        says(blocked),
        make=lambda tag: make_env("sokoban", GAMES["sokoban"]),
        state_text="grid",
        **settings,
    )
    assert stated(episode.messages[1]["content"]) == (per_turn, in_all, turns, in_all)
    assert [len(turn.executed) for turn in episode.turns] == [
        min(per_turn, turn.actions_left) for turn in episode.turns
    ]
    assert sum(len(turn.executed) for turn in episode.turns) == min(in_all, per_turn * turns)
    assert len(episode.turns) == min(turns, -(-in_all // per_turn))


def test_a_preset_states_no_more_actions_per_turn_than_the_episode_has():
    cfg = load_config("base", ["custom_envs.SimpleSokoban.max_actions_per_traj=2"])
    prompter = setup.make_prompter(cfg, cfg.custom_envs["SimpleSokoban"], "base")
    text = prompter.first_messages(reset("sokoban"))[1]["content"]
    assert stated(text) == (2, 2, 5, 2)


@pytest.mark.parametrize(
    ("settings", "prefill", "tags"),
    [
        ({}, "<think>", ["think", "answer"]),
        ({"enable_think": False}, "<answer>", ["answer"]),
        ({"mode": "add_worldmodel"}, "<think>", ["think", "observation", "prediction", "answer"]),
        # States have to stand somewhere: the world-model format always has its think block.
        (
            {"mode": "add_worldmodel", "enable_think": False},
            "<think>",
            ["think", "observation", "prediction", "answer"],
        ),
    ],
)
def test_every_turn_asks_for_the_format_that_is_parsed(settings, prefill, tags):
    prompter, env = Prompter(**settings), reset("frozen_lake")
    assert prompter.prefill == prefill
    for text in (
        prompter.first_messages(env)[1]["content"],
        prompter.next_message(env, turn=2, actions_left=1, reward=0)["content"],
    ):
        asked = text[
            text.index("Reply only with ") + len("Reply only with ") : text.index(" in at most")
        ]
        assert re.findall(r"<(\w+)>", asked) == tags
        assert asked.startswith(prefill)
        response = parse_response(
            asked,
            mode=prompter.mode,
            enable_think=prompter.enable_think,
            action_sep="||",
            max_actions=5,
        )
        assert response.well_formed


def test_own_instructions_replace_the_rules_and_nothing_else():
    cfg = load_config(
        "base",
        [
            "custom_envs.SimpleSokoban.env_instruction='Move the crates.'",
            "custom_envs.SimpleSokoban.env_instruction_add_worldmodel='Foresee the crates.'",
        ],
    )
    env = reset("sokoban")
    for mode, rules in (("base", "Move the crates."), ("add_worldmodel", "Foresee the crates.")):
        text = setup.make_prompter(cfg, cfg.custom_envs["SimpleSokoban"], mode).first_messages(env)[
            1
        ]["content"]
        assert text.startswith(rules + "\n")
        assert "You are playing Sokoban" not in text
        assert "Actions: Up, Down, Left, Right." in text
    # Without rules of its own, the world-model format takes those of the base format.
    cfg = load_config("base", ["custom_envs.SimpleSokoban.env_instruction='Move the crates.'"])
    prompter = setup.make_prompter(cfg, cfg.custom_envs["SimpleSokoban"], "add_worldmodel")
    assert prompter.first_messages(env)[1]["content"].startswith("Move the crates.\n")


@pytest.mark.parametrize(
    ("reward", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1, "1"),
        (-0.1 - 0.1 - 0.1, "-0.3"),
        (10.9, "10.9"),
        (-0.00001, "0"),
        (100.0, "100"),
    ],
)
def test_rewards_are_written_without_noise(reward, text):
    assert format_reward(reward) == text

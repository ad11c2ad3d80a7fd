import math
from pathlib import Path

import pytest

from spa.config.load import PARTS, config_names, load_config
from spa.envs.cards import Card, card_with, cards, shipped
from spa.envs.frozen_lake import FrozenLake
from spa.envs.registry import make_env
from spa.recipes.prompters import make_prompter
from spa_author.cards import measure, puzzles_hash, random_episode, to_json

BASE = load_config("base")
SPECS = BASE.custom_envs
PRESETS = [name for name in config_names() if name not in PARTS]
SLOW = {"HarderSokoban", "HardSokoban"}  # their boards are in the golden file


def test_every_tag_has_a_card():
    assert set(cards()) >= set(SPECS)


@pytest.mark.parametrize("tag", sorted(SPECS))
def test_cards_describe_the_shipped_tags(tag):
    spec, found = SPECS[tag], cards()[tag]
    most = BASE.most_actions(tag)
    assert found.describes(spec.env_type, spec.env_config, most)
    assert not found.describes(spec.env_type, spec.env_config, most + 1)
    assert found.optimum is None or found.random_success <= found.optimum + 0.05 <= 1.05


@pytest.mark.parametrize("preset", PRESETS)
def test_the_tags_of_every_preset_have_a_card_for_as_many_actions_as_its_turns_hold(preset):
    cfg = load_config(preset)
    for part in (cfg.es_manager.train, cfg.es_manager.val):
        for tag in part.env_configs.tags:
            spec, most = cfg.environment(tag), cfg.most_actions(tag)
            assert most <= cfg.max_turn(tag) * cfg.agent_proxy.max_actions_per_turn
            assert card_with(tag, spec.env_type, spec.env_config, most) is not None, tag


def test_sudoku_is_not_measured_with_actions_that_turns_do_not_hold():
    assert cards()["Sudoku"].max_actions_per_traj == 25 and cards()["Sudoku"].random_success < 0.5
    cfg = load_config("smol_sudoku")
    spec = cfg.environment("Sudoku")
    few = card_with("Sudoku", spec.env_type, spec.env_config, 6)
    assert cfg.most_actions("Sudoku") == 6 and few is not None and few.random_success < 0.01


def test_the_prompt_of_the_sudoku_preset_promises_as_many_actions_as_its_turns_hold():
    cfg = load_config("_10_sudoku")
    spec = cfg.environment("Sudoku")
    env = make_env(spec.env_type, spec.env_config)
    env.reset(seed=0)
    prompt = make_prompter(cfg, spec, cfg.ctx_manager.mode).first_messages(env)[1]["content"]
    assert "at most 25 actions and 5 turns in all" in prompt and "50" not in prompt


@pytest.mark.parametrize("tag", sorted(set(SPECS) - SLOW))
def test_puzzles_are_those_of_the_card(tag):
    """If this fails on purpose, raise the version in `spa.envs.cards` and measure the card anew."""
    spec = SPECS[tag]
    assert puzzles_hash(make_env(spec.env_type, spec.env_config)) == cards()[tag].puzzles_hash


def test_known_ceilings():
    assert cards()["FrozenLakeNoSlip"].optimum == 1.0
    assert 0.47 < cards()["FrozenLake"].optimum < 0.53  # slips cap closed-loop play near one half
    assert cards()["SimpleSokoban"].optimum == 0.992 and cards()["2048"].optimum is None


def test_measuring_by_hand():
    """Always the same 2x2 lake in effect: without holes and slips every goal is one or two moves away."""
    found = measure("t", "frozen_lake", {"size": 2, "p": 1.0, "is_slippery": False}, 1)
    env = FrozenLake(size=2, p=1.0, is_slippery=False)
    near = 0
    for seed in range(1000):
        env.reset(seed=seed)
        near += env.optimal_steps() == 1
    assert found.optimum == round(near / 1000, 4) and found.distinct_puzzles == 12
    # A random first move is right in one of four cases where one move is enough.
    assert abs(found.random_success - near / 4000) < 4 * math.sqrt(0.25 * near) / 1000
    assert found.random_score == found.random_success
    assert found.puzzles_hash == puzzles_hash(env)


def test_random_play_ends_with_the_episode():
    env = FrozenLake(size=2, p=1.0, is_slippery=False)
    env.reset(seed=0)
    assert random_episode(env, 0, 1000) == (True, 1.0)


def test_a_card_of_a_game_of_two_says_what_the_first_player_gets(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    found = measure("Nim", "nim:Nim", None, 40, puzzles=30)
    assert 0.2 < found.random_success < 0.8
    assert found.random_score == pytest.approx(2 * found.random_success - 1, abs=1e-3)  # 1 or -1


def test_cards_round_trip():
    import json

    rows = json.loads(to_json(shipped(), "spa env measure"))["cards"]
    assert tuple(Card(**row) for row in rows) == shipped()
    assert {row["tag"]: Card(**row) for row in reversed(rows)} == cards()


@pytest.mark.parametrize(
    ("game", "options"),
    [
        ("frozen_lake", {"size": 4, "is_slippery": False}),
        ("sokoban", {"dim_x": 6, "dim_y": 6}),
        ("sudoku", {}),
        ("rubiks_cube", {}),
    ],
)
def test_the_best_policy_has_no_more_steps_than_the_episode(game, options):
    env = make_env(game, {**options, "max_steps": 2})
    for seed in range(8):
        env.reset(seed=seed)
        promised = env.best_success(10)
        for text in env.expert_actions(10):
            _, _, terminated, truncated, info = env.step(env.to_action(text))
            if terminated or truncated:
                break
        assert promised == float(info["success"])

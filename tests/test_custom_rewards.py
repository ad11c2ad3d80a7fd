"""Reward functions of the user's own: what they see, what they replace, and what they leave alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from spa.config.load import load_config
from spa.config.stages import stages_of
from spa.custom_rewards import load_rewards
from spa.errors import ConfigError
from spa.evaluation.episode_metrics import episode_metrics
from spa.policies.scripted import random_engine
from spa.recipes import setup
from spa.recipes.ppo_rollouts import validation_episodes
from spa.types import Episode, Turn

LAKE = "FrozenLakeNoSlip"
HERE = f"{__name__}:"


def short(turn: Turn) -> float:
    return -0.1 * len(turn.executed)


def broken(turn: Turn) -> float:
    raise KeyError("goal")


def endless(turn: Turn) -> float:
    return float("inf")


def play(reward: str | dict[str, float] | None) -> list[Episode]:
    overrides = ["es_manager.val.env_groups=3", "es_manager.val.group_size=2"]
    cfg = load_config("tiny", [*overrides, "es_manager.val.env_configs.n_groups=null"])
    spec = cfg.custom_envs[LAKE]
    player = setup.make_worker(cfg, None, mode="base", own_rewards=False)
    assert spec.reward is None
    player = replace(player, rewards={LAKE: load_rewards("reward", reward)})
    return validation_episodes(cfg, player, random_engine(max_actions=2))


def test_a_weighted_sum_replaces_the_rewards_and_nothing_else():
    theirs = play(None)
    ours = play({"game": 1.0, f"{HERE}short": 0.5})
    for old, new in zip(theirs, ours, strict=True):
        assert new.messages == old.messages  # prompts show the game's own reward
        for before, after in zip(old.turns, new.turns, strict=True):
            assert after.reward == pytest.approx(before.reward - 0.05 * len(before.executed))
            assert after.reward_terms == {"game": before.reward, f"{HERE}short": short(before)}
    assert Episode.from_json(ours[0].to_json()).turns == ours[0].turns
    assert all("reward_terms" not in turn for turn in theirs[0].to_json()["turns"])
    metrics = episode_metrics(ours, "train")
    actions = sum(len(turn.executed) for episode in ours for turn in episode.turns) / len(ours)
    assert metrics[f"train/{LAKE}/reward/{HERE}short"] == pytest.approx(-0.1 * actions)
    assert metrics[f"train/{LAKE}/reward"] == pytest.approx(
        metrics[f"train/{LAKE}/reward/game"] + 0.5 * metrics[f"train/{LAKE}/reward/{HERE}short"]
    )


def test_one_function_alone_replaces_the_games_reward():
    assert all(
        turn.reward == short(turn) for episode in play(f"{HERE}short") for turn in episode.turns
    )


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("short", "'short' is unknown; use game, or your own as 'package.module:name'"),
        (f"{HERE}missing", "cannot load"),
        (f"{HERE}broken", "raised KeyError: 'goal'"),
        (f"{HERE}endless", "returned inf, but a reward must be finite"),
    ],
)
def test_what_is_wrong_with_a_reward_function_is_said(reward: str, said: str):
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        play(reward)


def test_ppo_and_evaluation_read_the_setting_and_self_play_does_not(tmp_path: Path):
    assert stages_of(f"custom_envs.{LAKE}.reward") == ("ppo", "eval")
    assert stages_of(f"custom_envs.{LAKE}.env_type") == ("selfplay", "ppo", "eval")
    file = tmp_path / "own.yaml"
    for text in (f"{HERE}short", f"{{game: 1, '{HERE}short': 0.5}}"):
        file.write_text(f"defaults: [tiny]\ncustom_envs:\n  {LAKE}:\n    reward: {text}\n")
        cfg = load_config(str(file))
        player = setup.make_worker(cfg, None, mode="base", own_rewards=True)
        assert [term.weight for term in player.rewards[LAKE]][-1] in (1.0, 0.5)
        assert setup.make_worker(cfg, None, mode="base").rewards == {}

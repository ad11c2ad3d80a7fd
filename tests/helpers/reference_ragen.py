"""Frozen games and settings for whole steps of RAGEN's trainer beside ours. benchmarks/parity/ragen_steps.py writes
tests/golden/ragen_steps.json from them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from helpers.families import tokenizer

GROUPS, SIZE, STEPS = 4, 4, 3
LR, CRITIC_LR = 1e-3, 1e-3
KEPT = 40  # leading numbers of advantages and returns that are kept
SHARED = (
    f"es_manager.train.env_groups={GROUPS}",
    f"es_manager.train.group_size={SIZE}",
    "es_manager.train.env_configs.tags=[SimpleSokoban,FrozenLake]",
    f"es_manager.train.env_configs.n_groups=[{GROUPS // 2},{GROUPS // 2}]",
    "ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.rollout_filter_ratio=0.5",
    f"actor_rollout_ref.actor.optim.lr={LR}",
    f"critic.optim.lr={CRITIC_LR}",
    "critic.cliprange_value=0.5",
    f"trainer.total_training_steps={STEPS}",
)
"""Settings of all cases, in the words of both."""

ALL = "actor_rollout_ref.rollout.rollout_filter_ratio=1"
GRPO = "algorithm.adv_estimator=grpo"
CASES: dict[str, tuple[str, ...]] = {
    "gae": (),
    "least_spread": ("actor_rollout_ref.rollout.rollout_filter_type=std_rev",),
    "two_epochs": (
        "actor_rollout_ref.actor.ppo_epochs=2",
        "critic.ppo_epochs=2",
        "ppo_mini_batch_size=8",
        ALL,
    ),
    "turn_scores": ("agent_proxy.use_turn_scores=true",),
    "bi_level": ("algorithm.bi_level_gae=true", "algorithm.lam=0.9"),
    "bi_level_turn_scores": (
        "algorithm.bi_level_gae=true",
        "agent_proxy.use_turn_scores=true",
        "algorithm.lam=0.9",
    ),
    "grpo": (GRPO, "agent_proxy.reward_normalization.method=mean_std", ALL),
    "grpo_by_length": (
        GRPO,
        "agent_proxy.reward_normalization.method=mean_std",
        "grpo_advantage_length_weight=true",
        ALL,
    ),
    "mean_of_the_batch": (
        "agent_proxy.reward_normalization.method=mean",
        "agent_proxy.reward_normalization.grouping=batch",
        ALL,
    ),
    "clipped_per_environment": (
        "agent_proxy.reward_normalization.method=asym_clip",
        "agent_proxy.reward_normalization.grouping=inductive",
        ALL,
    ),
    "kl_in_reward": ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.05"),
    "kl_in_reward_adaptive": (
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.kl_coef=0.05",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.target_kl=0.02",
        "algorithm.kl_ctrl.horizon=100",
    ),
    "kl_in_loss": (
        "actor_rollout_ref.actor.use_kl_loss=true",
        "actor_rollout_ref.actor.kl_loss_coef=0.1",
    ),
    "critic_first": ("trainer.critic_warmup=2",),
}
"""Overrides of a case, given to both. GAE is not discounted outside bi-level GAE: RAGEN's verl then counts the tokens of
the environment as steps with a value of 0, which today's verl and we pass over."""

WORDS = [
    "the",
    "player",
    "is",
    "at",
    "goal",
    "box",
    "wall",
    "Left",
    "Right",
    "Up",
    "Down",
    "here",
    "and",
    "there",
    "1",
    "2",
    "3",
    ",",
    ".",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenGame:
    """An episode that was played: what was shown and said, rewards per turn, and the penalty for its format."""

    env_id: int
    group_id: int
    tag: str
    states: tuple[str, ...]
    responses: tuple[str, ...]
    rewards: tuple[float, ...]
    penalty: float


def frozen_games(step: int) -> list[FrozenGame]:
    """The episodes of a step: groups of SIZE, one to three turns each, no reward is 0."""
    rng = np.random.default_rng(300 + step)

    def say(count: int) -> str:
        return " ".join(rng.choice(WORDS, count))

    games = []
    for env_id in range(GROUPS * SIZE):
        turns = int(rng.integers(1, 4))
        group = env_id // SIZE
        games.append(
            FrozenGame(
                env_id=env_id,
                group_id=group,
                tag="SimpleSokoban" if group < GROUPS // 2 else "FrozenLake",
                states=tuple(say(int(rng.integers(3, 9))) for _ in range(turns)),
                responses=tuple(
                    f"<think>{say(int(rng.integers(2, 7)))}</think><answer>{say(2)}</answer>"
                    for _ in range(turns)
                ),
                rewards=tuple(float(r) for r in np.round(rng.normal(size=turns) * (1 + group), 3)),
                penalty=float(rng.choice([0.0, -0.1])),
            )
        )
    return games


def qwen_tokenizer() -> Any:
    """A small tokenizer with Qwen's markers, under a name by which RAGEN knows them."""
    made = tokenizer("qwen2")
    made.name_or_path = "qwen"
    return made

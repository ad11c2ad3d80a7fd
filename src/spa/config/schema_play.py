"""Sections about playing: environments, groups, prompts, limits."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from spa.config.fields import Key, Name, Separator, section
from spa.types import ReplyOrder


@section
class SeedConfig:
    """Base seeds. Puzzle g of step s has seed `train + s * env_groups + g`."""

    train: Annotated[
        int,
        Key("base seed of training: puzzles, noise, sampling, shuffling", affects="result", ge=0),
    ] = 10000
    val: Annotated[int, Key("base seed of validation puzzles", affects="result", ge=0)] = 123


@section
class EnvSpec:
    """One environment tag of `custom_envs`."""

    env_type: Annotated[
        str, Key("registered type, or a dotted path `package.module:Class`", affects="result")
    ]
    max_actions_per_traj: Annotated[
        int, Key("actions that an episode may take in all", affects="result", ge=1)
    ] = 10
    max_tokens: Annotated[
        int, Key("length hint of the prompt, in words", affects="result", ge=1)
    ] = 100
    max_turn: Annotated[
        int | None, Key("replies per episode; null: `agent_proxy.max_turn`", affects="result", ge=1)
    ] = None
    action_sep: Annotated[
        Separator | None,
        Key(
            "text between the actions of one answer; null: `agent_proxy.action_sep`",
            affects="result",
        ),
    ] = None
    show_legal_actions: Annotated[
        bool, Key("every prompt lists the actions that are allowed in the state", affects="result")
    ] = False
    self_play: Annotated[
        bool,
        Key(
            "in training the policy plays both seats of a game of two; else the other moves at random",
            affects="result",
        ),
    ] = False
    env_instruction: Annotated[
        str | None,
        Key("rules for the first prompt; null takes the environment's own", affects="result"),
    ] = None
    env_instruction_add_worldmodel: Annotated[
        str | None,
        Key(
            "rules in the world-model format; null falls back to `env_instruction`, then the environment's",
            affects="result",
        ),
    ] = None
    env_config: Annotated[
        Mapping[str, Any] | None,
        Key("options of the environment class; null takes its own", affects="result"),
    ] = None
    reward: Annotated[
        str | Mapping[str, float] | None,
        Key(
            "your reward function `package.module:name`, or several with weights (`game` is the game's own); null: "
            "the game's own",
            affects="result",
        ),
    ] = None


@section
class EnvConfigs:
    """Which tags are played, and in how many groups each."""

    tags: Annotated[tuple[Name, ...], Key("tags of `custom_envs`", affects="result")] = (
        "SimpleSokoban",
    )
    n_groups: Annotated[
        tuple[int, ...] | None,
        Key(
            "groups per tag, in the order of `tags`; null spreads `env_groups` evenly",
            affects="result",
        ),
    ] = None


@section
class GroupsConfig:
    """A set of episodes: groups of the same puzzle."""

    env_groups: Annotated[int, Key("puzzles per step", affects="result", ge=1)] = 32
    group_size: Annotated[int, Key("episodes of each puzzle", affects="result", ge=1)] = 8
    env_configs: EnvConfigs = field(default_factory=EnvConfigs)


@section
class EsManagerConfig:
    """Training and validation episodes."""

    format_penalty: Annotated[
        float,
        Key(
            "added to the score of a turn with a malformed or unknown action",
            affects="result",
            le=0,
        ),
    ] = -0.1
    env_timeout_s: Annotated[
        float | None,
        Key(
            "seconds that an environment may take for a turn; null is no limit",
            affects="rounding",
            gt=0,
        ),
    ] = 60.0
    env_workers: Annotated[
        int,
        Key(
            "processes for slow environments; 0: they run in the trainer's own",
            affects="rounding",
            ge=0,
            le=1024,
        ),
    ] = 0
    train: GroupsConfig = field(default_factory=GroupsConfig)
    val: GroupsConfig = field(default_factory=lambda: GroupsConfig(env_groups=128))


@section
class RewardNormalizationConfig:
    """How episode scores are normalised, after the format penalty is added."""

    grouping: Annotated[
        Literal["state", "inductive", "batch"],
        Key("scores compared with each other: same puzzle, same tag, all", affects="result"),
    ] = "state"
    method: Annotated[
        Literal["identity", "mean", "mean_std", "asym_clip"],
        Key("nothing, minus mean, z-score, z-score clamped to [-1, 3]", affects="result"),
    ] = "identity"


@section
class WorldModelRewardConfig:
    """Rewards for knowing the world during PPO (online world modelling, a baseline). Needs the
    world-model format."""

    observation: Annotated[
        float,
        Key(
            "per turn, times the share of the observation's cells that are right",
            affects="result",
            ge=0,
        ),
    ] = 0.0
    prediction: Annotated[
        float,
        Key(
            "per turn, times the F1 of the cells that the prediction changes",
            affects="result",
            ge=0,
        ),
    ] = 0.0
    within: Annotated[
        float | None,
        Key(
            "pay a prediction in full if 1 - F1 is below this, else nothing (RWML); null: the F1 itself",
            affects="result",
            gt=0,
            le=1,
        ),
    ] = None


@section
class AgentProxyConfig:
    """The shape of an episode."""

    max_turn: Annotated[int, Key("replies per episode", affects="result", ge=1)] = 5
    action_sep: Annotated[
        Separator, Key("text between the actions of one answer", affects="result")
    ] = "||"
    max_actions_per_turn: Annotated[
        int, Key("actions that are read from one answer", affects="result", ge=1)
    ] = 5
    use_turn_scores: Annotated[
        bool,
        Key(
            "each turn's reward on that turn's last token, not the sum on the last",
            affects="result",
        ),
    ] = False
    reply_order: Annotated[
        ReplyOrder,
        Key(
            "world-model replies, after the observation: thoughts and prediction; the plan by name, then its "
            "prediction; thoughts and answer, then the prediction; thoughts and no prediction; several plans, each "
            "with its predicted state, then the choice; search: base replies whose thoughts are a breadth-first search",
            affects="result",
        ),
    ] = "prediction_first"
    imagined_plans: Annotated[
        int, Key("plans that `choose_plan` chooses from", affects="result", ge=2)
    ] = 2
    enable_think: Annotated[bool, Key("replies begin with a think block", affects="result")] = True
    reward_normalization: RewardNormalizationConfig = field(
        default_factory=RewardNormalizationConfig
    )
    world_model_reward: WorldModelRewardConfig = field(default_factory=WorldModelRewardConfig)


@section
class CtxManagerConfig:
    """Prompts of PPO and evaluation. Self-play always uses the world-model format."""

    mode: Annotated[
        Literal["base", "add_worldmodel"],
        Key("reply format: think and answer, or with observation and prediction", affects="result"),
    ] = "base"
    history: Annotated[
        bool,
        Key(
            "prompts hold the turns before; false: each turn shows the rules and its state alone",
            affects="result",
        ),
    ] = True
    placeholders: Annotated[
        Literal["brackets", "words"],
        Key("how the asked format names what to fill in: [actions] or actions", affects="result"),
    ] = "brackets"
    example: Annotated[
        bool, Key("show a sample reply, made by playing, in world-model prompts", affects="result")
    ] = True

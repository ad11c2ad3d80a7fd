"""Sections on environments, groups, prompts and limits."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from spa.config.fields import Key, Name, Separator, section
from spa.errors import nearest
from spa.plugins import response_formats


def _response_format(name: str) -> str:
    known = response_formats()
    if name not in known:
        raise ValueError(f"must be one of {', '.join(known)}; {nearest(name, known)}")
    return name


@section
class SeedConfig:
    """Base seeds. In training, the puzzle of group g in step s has the seed `train + s * env_groups
    + g`."""

    # The defaults are the base seeds of the original code.
    train: Annotated[
        int,
        Key(
            "base seed of training for puzzles, noise, sampling and shuffling",
            affects="semantics",
            ge=0,
        ),
    ] = 10000
    val: Annotated[
        int,
        Key(
            "base seed of validation puzzles; the sample response in prompts uses puzzles with seeds 0 to 9",
            affects="semantics",
            ge=0,
        ),
    ] = 123


@section
class EnvSpec:
    """One environment tag of `custom_envs`."""

    env_type: Annotated[
        str,
        Key(
            "environment type: a registered name, or the import path `package.module:Class`",
            affects="semantics",
        ),
    ]
    # The default is the limit of the original code for Sokoban and FrozenLake.
    max_actions_per_traj: Annotated[
        int, Key("largest number of actions per episode", affects="semantics", ge=1)
    ] = 10
    max_tokens: Annotated[
        int, Key("response length that the prompt suggests, in words", affects="semantics", ge=1)
    ] = 100
    max_turn: Annotated[
        int | None,
        Key(
            "largest number of turns per episode; null uses `agent_proxy.max_turn`",
            affects="semantics",
            ge=1,
        ),
    ] = None
    action_sep: Annotated[
        Separator | None,
        Key(
            "string between the actions of one answer; null uses `agent_proxy.action_sep`",
            affects="semantics",
        ),
    ] = None
    show_legal_actions: Annotated[
        bool,
        Key("list the legal actions of the current state in every prompt", affects="semantics"),
    ] = False
    self_play: Annotated[
        bool,
        Key(
            "in training on two-player games, true lets the policy play both players; false uses a "
            "random opponent",
            affects="semantics",
        ),
    ] = False
    env_instruction: Annotated[
        str | None,
        Key(
            "game rules in the first prompt; null uses the rules of the environment",
            affects="semantics",
        ),
    ] = None
    env_instruction_add_worldmodel: Annotated[
        str | None,
        Key(
            "game rules in world-model prompts; null uses `env_instruction`, or else the rules of the "
            "environment",
            affects="semantics",
        ),
    ] = None
    env_config: Annotated[
        Mapping[str, Any] | None,
        Key(
            "options that are passed to the environment class; null uses the default options",
            affects="semantics",
        ),
    ] = None
    reward: Annotated[
        str | Mapping[str, float] | None,
        Key(
            "reward function `package.module:name`, or a mapping from several functions to weights, "
            "where `game` is the game's own reward. null uses the game's own reward",
            affects="semantics",
        ),
    ] = None


@section
class EnvConfigs:
    """The tags to play, and the number of groups of each."""

    tags: Annotated[
        tuple[Name, ...],
        Key("environment tags to play, as keys of `custom_envs`", affects="semantics"),
    ] = ("SimpleSokoban",)
    n_groups: Annotated[
        tuple[int, ...] | None,
        Key(
            "number of groups per tag, in the order of `tags`; null divides `env_groups` into equal "
            "shares",
            affects="semantics",
        ),
    ] = None


@section
class GroupsConfig:
    """A set of episodes, in groups; the episodes of a group play the same puzzle."""

    # The defaults give 32 x 8 = 256 episodes per step, as in the original code.
    env_groups: Annotated[
        int,
        Key(
            "number of groups (puzzles) per training step, or per validation",
            affects="semantics",
            ge=1,
        ),
    ] = 32
    group_size: Annotated[
        int, Key("number of episodes of each puzzle", affects="semantics", ge=1)
    ] = 8
    env_configs: EnvConfigs = field(default_factory=EnvConfigs)


@section
class EsManagerConfig:
    """Groups of training and validation episodes, and limits for environments."""

    format_penalty: Annotated[
        float,
        Key(
            "penalty that is added to the score of a turn with a malformed response or an unknown action",
            affects="semantics",
            le=0,
        ),
    ] = -0.1
    env_timeout_s: Annotated[
        float | None,
        Key(
            "time limit per turn of an environment, in seconds; null sets no limit",
            affects="numerics",
            gt=0,
        ),
    ] = 60.0
    env_workers: Annotated[
        int,
        Key(
            "number of processes for slow environments; 0 runs environments in the process of the trainer",
            affects="numerics",
            ge=0,
            le=1024,
        ),
    ] = 0
    train: GroupsConfig = field(default_factory=GroupsConfig)
    # The default is 128 validation puzzles, as in the original code.
    val: GroupsConfig = field(default_factory=lambda: GroupsConfig(env_groups=128))


@section
class RewardNormalizationConfig:
    """Normalization of episode scores, after the format penalty is added."""

    grouping: Annotated[
        Literal["state", "inductive", "batch"],
        Key(
            "episodes whose scores are normalized together: same puzzle (`state`), same tag "
            "(`inductive`), or all episodes (`batch`)",
            affects="semantics",
        ),
    ] = "state"
    # The z-scores use the unbiased standard deviation, and are 0 for scores without variance.
    method: Annotated[
        Literal["identity", "mean", "mean_std", "asym_clip"],
        Key(
            "normalization of episode scores: none (`identity`), minus the mean (`mean`), z-score "
            "(`mean_std`), or z-score clamped to [-1, 3] (`asym_clip`)",
            affects="semantics",
        ),
    ] = "identity"


@section
class WorldModelRewardConfig:
    """Rewards for correct observations and predictions during PPO, a baseline called online world
    modelling. They need the world-model format."""

    observation: Annotated[
        float,
        Key(
            "maximum reward per turn for the observation; the reward is this value times the share of "
            "correct cells",
            affects="semantics",
            ge=0,
        ),
    ] = 0.0
    # VAGEN rewards the similarity of whole states, so it also rewards an agent that never moves.
    prediction: Annotated[
        float,
        Key(
            "maximum reward per turn for the prediction; the reward is this value times the F1 of the "
            "changed cells",
            affects="semantics",
            ge=0,
        ),
    ] = 0.0
    # The threshold comes from RWML (arXiv 2602.05842), but applies to a distance between cells
    # instead of embeddings (docs/methods.md).
    within: Annotated[
        float | None,
        Key(
            "threshold of an all-or-nothing prediction reward (RWML): the turn is rewarded if 1 - F1 is "
            "below the threshold. null scales the reward by F1",
            affects="semantics",
            gt=0,
            le=1,
        ),
    ] = None


@section
class AgentProxyConfig:
    """The structure of an episode."""

    # The defaults are five turns of five actions, as in the original code.
    max_turn: Annotated[
        int, Key("largest number of turns per episode", affects="semantics", ge=1)
    ] = 5
    action_sep: Annotated[
        Separator, Key("string between the actions of one answer", affects="semantics")
    ] = "||"
    max_actions_per_turn: Annotated[
        int, Key("largest number of actions per answer", affects="semantics", ge=1)
    ] = 5
    use_turn_scores: Annotated[
        bool,
        Key(
            "true puts the reward of each turn on the turn's last token; false puts the sum on the "
            "episode's last token",
            affects="semantics",
        ),
    ] = False
    response_format: Annotated[
        str,
        AfterValidator(_response_format),
        Key(
            "what responses contain after the observation and in which order (docs/recipe.md), or `search` "
            "for base responses with a written breadth-first search",
            affects="semantics",
        ),
    ] = "prediction_first"
    imagined_plans: Annotated[
        int,
        Key(
            "number of plans per turn with `response_format: choose_plan`",
            affects="semantics",
            ge=2,
        ),
    ] = 2
    enable_think: Annotated[
        bool, Key("start every response with a think block", affects="semantics")
    ] = True
    reward_normalization: RewardNormalizationConfig = field(
        default_factory=RewardNormalizationConfig
    )
    world_model_reward: WorldModelRewardConfig = field(default_factory=WorldModelRewardConfig)


@section
class CtxManagerConfig:
    """Prompts of PPO and evaluation, and details of all prompts. Self-play always uses the
    world-model format."""

    mode: Annotated[
        Literal["base", "add_worldmodel"],
        Key(
            "response format: `base` (think and answer), or `add_worldmodel` (also observation and "
            "prediction)",
            affects="semantics",
        ),
    ] = "base"
    # Presets whose responses write searches set this to false, because each search begins at the
    # current state (docs/methods.md).
    history: Annotated[
        bool,
        Key(
            "include earlier turns in the prompt; false shows only the rules and the current state",
            affects="semantics",
        ),
    ] = True
    placeholders: Annotated[
        Literal["brackets", "words"],
        Key(
            "style of placeholders in the format instruction: `brackets` writes [actions], and `words` "
            "writes actions",
            affects="semantics",
        ),
    ] = "brackets"
    example: Annotated[
        bool,
        Key(
            "show an example response, from a played game, in world-model prompts",
            affects="semantics",
        ),
    ] = True

"""Sections about playing: environments, groups, prompts, limits."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from spa.config.fields import Key, Name, Separator, section
from spa.types import ResponseFormat


@section
class SeedConfig:
    """Base seeds. Puzzle g of step s has seed `train + s * env_groups + g`."""

    # The base seeds of the original.
    train: Annotated[
        int,
        Key(
            "base seed of training: puzzles, noise, sampling, shuffling", affects="semantics", ge=0
        ),
    ] = 10000
    val: Annotated[int, Key("base seed of validation puzzles", affects="semantics", ge=0)] = 123


@section
class EnvSpec:
    """One environment tag of `custom_envs`."""

    env_type: Annotated[
        str, Key("registered type, or a dotted path `package.module:Class`", affects="semantics")
    ]
    # The original's limit for Sokoban and FrozenLake.
    max_actions_per_traj: Annotated[
        int, Key("actions per episode, at most", affects="semantics", ge=1)
    ] = 10
    max_tokens: Annotated[
        int, Key("length hint of the prompt, in words", affects="semantics", ge=1)
    ] = 100
    max_turn: Annotated[
        int | None,
        Key("turns per episode, at most; null: `agent_proxy.max_turn`", affects="semantics", ge=1),
    ] = None
    action_sep: Annotated[
        Separator | None,
        Key(
            "text between the actions of one answer; null: `agent_proxy.action_sep`",
            affects="semantics",
        ),
    ] = None
    show_legal_actions: Annotated[
        bool,
        Key("list the actions that are legal in the state in every prompt", affects="semantics"),
    ] = False
    self_play: Annotated[
        bool,
        Key(
            "two-player games, in training: the policy plays both players; false: the other "
            "plays at random",
            affects="semantics",
        ),
    ] = False
    env_instruction: Annotated[
        str | None,
        Key("rules for the first prompt; null: the environment's own", affects="semantics"),
    ] = None
    env_instruction_add_worldmodel: Annotated[
        str | None,
        Key(
            "rules in the world-model format; null: `env_instruction`, else the environment's own",
            affects="semantics",
        ),
    ] = None
    env_config: Annotated[
        Mapping[str, Any] | None,
        Key("options of the environment class; null: its defaults", affects="semantics"),
    ] = None
    reward: Annotated[
        str | Mapping[str, float] | None,
        Key(
            "your reward function `package.module:name`, or several with weights (`game` is the game's own); null: "
            "the game's own",
            affects="semantics",
        ),
    ] = None


@section
class EnvConfigs:
    """Which tags are played, and in how many groups each."""

    tags: Annotated[tuple[Name, ...], Key("tags of `custom_envs`", affects="semantics")] = (
        "SimpleSokoban",
    )
    n_groups: Annotated[
        tuple[int, ...] | None,
        Key(
            "groups per tag, in the order of `tags`; null: equal shares of `env_groups`",
            affects="semantics",
        ),
    ] = None


@section
class GroupsConfig:
    """A set of episodes: groups of the same puzzle."""

    # The original's 32 x 8 = 256 episodes per step.
    env_groups: Annotated[int, Key("puzzles per step", affects="semantics", ge=1)] = 32
    group_size: Annotated[int, Key("episodes of each puzzle", affects="semantics", ge=1)] = 8
    env_configs: EnvConfigs = field(default_factory=EnvConfigs)


@section
class EsManagerConfig:
    """Training and validation episodes."""

    format_penalty: Annotated[
        float,
        Key(
            "added to the score of a turn with a malformed response or an unknown action",
            affects="semantics",
            le=0,
        ),
    ] = -0.1
    env_timeout_s: Annotated[
        float | None,
        Key(
            "time limit of an environment per turn, in seconds; null: none",
            affects="numerics",
            gt=0,
        ),
    ] = 60.0
    env_workers: Annotated[
        int,
        Key(
            "processes for slow environments; 0: they run in the trainer's process",
            affects="numerics",
            ge=0,
            le=1024,
        ),
    ] = 0
    train: GroupsConfig = field(default_factory=GroupsConfig)
    # 128 validation puzzles, as in the original.
    val: GroupsConfig = field(default_factory=lambda: GroupsConfig(env_groups=128))


@section
class RewardNormalizationConfig:
    """How episode scores are normalised, after the format penalty is added."""

    grouping: Annotated[
        Literal["state", "inductive", "batch"],
        Key("scores that are normalised together: same puzzle, same tag, all", affects="semantics"),
    ] = "state"
    # The standard deviation is the unbiased one; scores without variance become 0.
    method: Annotated[
        Literal["identity", "mean", "mean_std", "asym_clip"],
        Key("nothing, minus mean, z-score, z-score clamped to [-1, 3]", affects="semantics"),
    ] = "identity"


@section
class WorldModelRewardConfig:
    """Rewards for knowing the world during PPO (online world modelling, a baseline). Needs the
    world-model format."""

    observation: Annotated[
        float,
        Key(
            "reward per turn: this, times the share of correct cells in the observation",
            affects="semantics",
            ge=0,
        ),
    ] = 0.0
    # VAGEN pays the similarity of whole states, which standing still earns, too.
    prediction: Annotated[
        float,
        Key(
            "reward per turn: this, times the F1 of the cells that the prediction changes",
            affects="semantics",
            ge=0,
        ),
    ] = 0.0
    # RWML, arXiv 2602.05842, with cells in place of its embeddings (docs/methods.md).
    within: Annotated[
        float | None,
        Key(
            "reward a prediction in full if 1 - F1 is below this, else not at all (RWML); "
            "null: by its F1",
            affects="semantics",
            gt=0,
            le=1,
        ),
    ] = None


@section
class AgentProxyConfig:
    """The shape of an episode."""

    # The original's limits: five turns of five actions.
    max_turn: Annotated[int, Key("turns per episode, at most", affects="semantics", ge=1)] = 5
    action_sep: Annotated[
        Separator, Key("text between the actions of one answer", affects="semantics")
    ] = "||"
    max_actions_per_turn: Annotated[
        int, Key("actions per answer, at most", affects="semantics", ge=1)
    ] = 5
    use_turn_scores: Annotated[
        bool,
        Key(
            "put each turn's reward on its last token; false: the sum on the episode's last token",
            affects="semantics",
        ),
    ] = False
    response_format: Annotated[
        ResponseFormat,
        Key(
            "parts of a world-model response after the observation, in order "
            "(docs/methods.md); search: base format with a written breadth-first search",
            affects="semantics",
        ),
    ] = "prediction_first"
    imagined_plans: Annotated[
        int, Key("plans per turn with `choose_plan`", affects="semantics", ge=2)
    ] = 2
    enable_think: Annotated[
        bool, Key("responses begin with a think block", affects="semantics")
    ] = True
    reward_normalization: RewardNormalizationConfig = field(
        default_factory=RewardNormalizationConfig
    )
    world_model_reward: WorldModelRewardConfig = field(default_factory=WorldModelRewardConfig)


@section
class CtxManagerConfig:
    """Prompts of PPO and evaluation. Self-play always uses the world-model format."""

    mode: Annotated[
        Literal["base", "add_worldmodel"],
        Key(
            "response format: think and answer, or with observation and prediction",
            affects="semantics",
        ),
    ] = "base"
    # False for written searches: each turn searches from the current state (docs/methods.md).
    history: Annotated[
        bool,
        Key(
            "prompts contain the earlier turns; false: only the rules and the current state",
            affects="semantics",
        ),
    ] = True
    placeholders: Annotated[
        Literal["brackets", "words"],
        Key("placeholders in the format instruction: [actions] or actions", affects="semantics"),
    ] = "brackets"
    example: Annotated[
        bool,
        Key(
            "show an example response, from a played game, in world-model prompts",
            affects="semantics",
        ),
    ] = True

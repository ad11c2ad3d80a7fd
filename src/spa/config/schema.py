"""The configuration as frozen, typed dataclasses whose sections mirror the YAML files, and
functions that list its keys or convert it to plain values.

Defaults equal those of `config/base.yaml`, so a section can be built without Hydra:
`ActorConfig(optim=OptimConfig(lr=3e-4))`. A test compares the defaults.
"""

import dataclasses
import functools
import types
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic import model_validator

from spa.config.fields import Invalid, Key, Name, ServerURL, flatten, is_secret, section
from spa.config.schema_algorithm import AlgorithmConfig, KLCtrlConfig
from spa.config.schema_generate import (
    GenerateConfig,
    ImagineConfig,
    SamplingConfig,
    SearchExamplesConfig,
)
from spa.config.schema_models import (
    ActorConfig,
    CriticConfig,
    CriticModelConfig,
    FSDPConfig,
    ModelConfig,
    OptimConfig,
    PolicyModelConfig,
    RefConfig,
    WorldLossConfig,
)
from spa.config.schema_play import (
    AgentProxyConfig,
    CtxManagerConfig,
    EnvConfigs,
    EnvSpec,
    EsManagerConfig,
    GroupsConfig,
    RewardNormalizationConfig,
    SeedConfig,
    WorldModelRewardConfig,
)
from spa.config.schema_rollout import RolloutConfig, ValKwargs
from spa.config.schema_stages import (
    CompareConfig,
    GateConfig,
    GenerationsToLogConfig,
    RayInitConfig,
    SFTConfig,
    SFTDataConfig,
    SFTModelConfig,
    SFTOptimConfig,
    SFTTrainerConfig,
    TrainerConfig,
)
from spa.errors import ConfigError, nearest

__all__ = [
    "APIModelConfig",
    "ActorConfig",
    "ActorRolloutRefConfig",
    "AgentProxyConfig",
    "AlgorithmConfig",
    "CompareConfig",
    "Config",
    "CriticConfig",
    "CriticModelConfig",
    "CtxManagerConfig",
    "DataConfig",
    "EnvConfigs",
    "EnvSpec",
    "EsManagerConfig",
    "FSDPConfig",
    "GateConfig",
    "GenerateConfig",
    "GenerationsToLogConfig",
    "GroupsConfig",
    "ImagineConfig",
    "KLCtrlConfig",
    "LoraConfig",
    "ModelConfig",
    "ModelSelection",
    "OptimConfig",
    "RayInitConfig",
    "RefConfig",
    "RewardNormalizationConfig",
    "RolloutConfig",
    "SFTConfig",
    "SFTDataConfig",
    "SFTModelConfig",
    "SFTOptimConfig",
    "SFTTrainerConfig",
    "SamplingConfig",
    "SearchExamplesConfig",
    "SeedConfig",
    "TrainerConfig",
    "ValKwargs",
    "WorldLossConfig",
    "WorldModelRewardConfig",
]


@section
class LoraConfig:
    """Low-rank adapters of policy and critic; the model sections refer to these values."""

    rank: Annotated[
        int,
        Key(
            "rank of the LoRA adapters; 0 trains all weights without adapters",
            affects="semantics",
            ge=0,
        ),
    ] = 0
    alpha: Annotated[float, Key("scale alpha of the LoRA adapters", affects="semantics", gt=0)] = 16
    target_modules: Annotated[
        str | tuple[str, ...],
        Key(
            "names of the modules that get LoRA adapters; all-linear means every linear layer except the "
            "output head",
            affects="semantics",
        ),
    ] = "all-linear"


@section
class DataConfig:
    """World-model data for SFT instead of self-play data, such as a published data set."""

    train_files: Annotated[
        str | tuple[str, ...] | None,
        Key(
            "training examples: files (JSONL, JSON, Parquet), folders or Hub data sets; null uses those of "
            "stage 1 (self-play)",
            affects="semantics",
            content="data",
        ),
    ] = None
    val_files: Annotated[
        str | tuple[str, ...] | None,
        Key(
            "validation examples, as `train_files`; null uses those next to the training examples, if any",
            affects="semantics",
            content="data",
        ),
    ] = None


@section
class ModelSelection:
    """The model to use behind an API."""

    model_name: Annotated[
        Name, Key("model behind an API, as a key of `model_info`", affects="semantics")
    ] = "gpt-4o"
    max_concurrency: Annotated[
        int, Key("largest number of API requests at a time", affects="numerics", ge=1, le=1024)
    ] = 16
    timeout_s: Annotated[
        float, Key("seconds to wait for the response to an API request", affects="numerics", gt=0)
    ] = 120.0
    max_retries: Annotated[
        int,
        Key(
            "number of retries of an API request after a rate limit or a server error",
            affects="numerics",
            ge=0,
        ),
    ] = 6
    requests_per_minute: Annotated[
        float | None,
        Key(
            "largest number of API requests per minute; null sets no limit",
            affects="numerics",
            gt=0,
        ),
    ] = None


@section
class APIModelConfig:
    """One entry of `model_info`: a model behind an API."""

    provider_name: Annotated[
        Literal["openai", "deepseek", "anthropic", "together", "custom"],
        Key(
            "API provider; custom means any other server and needs `base_url`", affects="semantics"
        ),
    ]
    model_name: Annotated[str, Key("name of the model at the API provider", affects="semantics")]
    generation_kwargs: Annotated[
        Mapping[str, Any],
        Key(
            "extra fields in every API request; null leaves out a field that `spa` would send",
            affects="semantics",
        ),
    ] = field(default_factory=dict)
    fold_system: Annotated[
        bool,
        Key(
            "begin the first user message with the system message, for models that accept no role `system`",
            affects="semantics",
        ),
    ] = False
    # The URL affects only `paths`, because a model gives the same responses at every URL.
    base_url: Annotated[
        ServerURL | None,
        Key(
            "URL of an OpenAI-compatible server; null uses the URL of the provider", affects="paths"
        ),
    ] = None
    api_key_env: Annotated[
        str | None,
        Key(
            "environment variable that holds the API key; null uses the usual variable of the provider",
            affects="paths",
        ),
    ] = None

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if self.provider_name == "custom" and not self.base_url:
            raise Invalid("base_url", "is required if provider_name=custom")
        # Keys at any depth are checked: `extra_body.api_key` would be saved as well.
        for key in flatten(self.generation_kwargs):
            if is_secret(key):
                text = (
                    "spa would save this secret with every run; put the key into an environment variable, and "
                    "name the variable in api_key_env"
                )
                raise Invalid(f"generation_kwargs.{key}", text)
        return self


@section
class ActorRolloutRefConfig:
    """The policy: its model, update, engine and reference."""

    model: PolicyModelConfig = field(default_factory=PolicyModelConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    ref: RefConfig = field(default_factory=RefConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)


@section
class Config:
    """All settings of a run."""

    # Fingerprints compare models by content: moving a model changes nothing, but replacing it does.
    model_path: Annotated[
        str,
        Key(
            "model of all stages: a Hub name, a folder, `smollm2` or `builtin:tiny`",
            affects="semantics",
            content="model",
        ),
    ] = "Qwen/Qwen2.5-1.5B-Instruct"
    state_text: Annotated[
        Literal["grid", "coords", "grid_and_coords"],
        Key(
            "how prompts show a state: as a `grid`, as coordinates (`coords`), or as both "
            "(`grid_and_coords`)",
            affects="semantics",
        ),
    ] = "grid_and_coords"
    # In the YAML files, sections refer to this key and the next two with `${…}`.
    micro_batch_size_per_gpu: Annotated[
        int, Key("default of every micro-batch size per GPU", affects="numerics", ge=1)
    ] = 1
    # With the defaults, the filter keeps 64 episodes, which gives two updates per step. The
    # original code makes a single update per step, in which all ratios are 1 and none is clipped.
    ppo_mini_batch_size: Annotated[
        int, Key("default of `ppo_mini_batch_size` for actor and critic", affects="semantics", ge=1)
    ] = 32
    grpo_advantage_length_weight: Annotated[
        bool,
        Key(
            "default of `actor_rollout_ref.actor.grpo_advantage_length_weight`", affects="semantics"
        ),
    ] = False
    launcher: Annotated[
        Literal["local", "ray"],
        Key(
            "how ranks are started: `local` uses torchrun or a single process, and `ray` uses Ray",
            affects="paths",
        ),
    ] = "local"
    ray_init: RayInitConfig = field(default_factory=RayInitConfig)
    seed: SeedConfig = field(default_factory=SeedConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    agent_proxy: AgentProxyConfig = field(default_factory=AgentProxyConfig)
    es_manager: EsManagerConfig = field(default_factory=EsManagerConfig)
    ctx_manager: CtxManagerConfig = field(default_factory=CtxManagerConfig)
    imagine: ImagineConfig = field(default_factory=ImagineConfig)
    custom_envs: Annotated[
        Mapping[str, EnvSpec], Key("environments that runs can play, by tag", affects="semantics")
    ] = field(default_factory=dict)
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    data: DataConfig = field(default_factory=DataConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    compare: CompareConfig = field(default_factory=CompareConfig)
    model_config: ModelSelection = field(default_factory=ModelSelection)
    model_info: Annotated[
        Mapping[str, APIModelConfig], Key("models behind APIs, by name", affects="semantics")
    ] = field(default_factory=dict)

    def environment(self, tag: str) -> EnvSpec:
        """Return the settings of a tag. Raises ConfigError, which names the nearest tag, if it is
        not configured."""
        if tag not in self.custom_envs:
            raise ConfigError(
                f"there is no environment tag {tag!r}; {nearest(tag, self.custom_envs)}"
            )
        return self.custom_envs[tag]

    def max_turn(self, tag: str) -> int:
        """Largest number of responses per episode of a tag."""
        own = self.custom_envs[tag].max_turn if tag in self.custom_envs else None
        return own or self.agent_proxy.max_turn

    def most_actions(self, tag: str) -> int:
        """Largest number of actions in an episode of a tag: `max_actions_per_traj`, or the number
        that fits into its turns if that is smaller."""
        return min(
            self.custom_envs[tag].max_actions_per_traj,
            self.max_turn(tag) * self.agent_proxy.max_actions_per_turn,
        )

    def has_kl_term(self) -> bool:
        """Return whether PPO compares the policy with its reference, in the loss or in the
        reward."""
        actor = self.actor_rollout_ref.actor
        return (actor.use_kl_loss and actor.kl_loss_coef > 0) or self.algorithm.use_kl_in_reward

    def action_sep(self, tag: str) -> str:
        """Separator between the actions of an answer, for a tag."""
        own = self.custom_envs[tag].action_sep if tag in self.custom_envs else None
        return own or self.agent_proxy.action_sep


# Cached, because evaluating the annotations of a class is slow.
@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """Return the annotation of each field of a schema dataclass by name, including `Annotated`."""
    return get_type_hints(cls, include_extras=True)


def schema_keys(cls: type = Config, prefix: str = "") -> Iterable[tuple[str, Any, Key | None]]:
    """Yield every key of the schema in order: its dotted path, its type without `Annotated`, and
    its `Key` (None for sections).

    A mapping with entries named by the user appears once, with `*` for the name.
    """
    for name, hint in field_types(cls).items():
        # get_args(Annotated[T, a, b]) is (T, a, b).
        key = next((extra for extra in get_args(hint)[1:] if isinstance(extra, Key)), None)
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        path = f"{prefix}{name}"
        yield path, kind, key
        if dataclasses.is_dataclass(kind):
            yield from schema_keys(kind, path + ".")  # type: ignore[arg-type]
        elif get_origin(kind) is Mapping and dataclasses.is_dataclass(value := get_args(kind)[1]):
            yield from schema_keys(value, path + ".*.")  # type: ignore[arg-type]


def type_name(kind: Any) -> str:
    """Format a type for the reference page: `int`, `str | None`, `tuple[float, float]`."""
    origin = get_origin(kind)
    args = get_args(kind)
    if origin is Annotated:
        return type_name(args[0])
    if origin is Literal:
        return " | ".join(map(str, args))
    # `Optional[X]` and `X | None` have different origins.
    if origin in (Union, types.UnionType):
        return " | ".join(type_name(arg) for arg in args)
    if origin is tuple:
        return f"tuple[{', '.join('...' if arg is Ellipsis else type_name(arg) for arg in args)}]"
    if origin is Mapping:
        return "mapping"
    return "None" if kind is types.NoneType else kind.__name__


def to_plain(value: Any) -> Any:
    """Convert settings to dicts, lists and scalars, ready for YAML."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value


def to_yaml(cfg: Config) -> str:
    """The whole configuration as YAML that `load_config` reads back."""
    return yaml.safe_dump(to_plain(cfg), sort_keys=False, allow_unicode=True, width=120)

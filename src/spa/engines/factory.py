"""Create the engine that the configuration selects.

An engine is a file in this folder that defines `KIND`, an `EngineKind`; such a file needs no
registration. Other packages can register engines, too.
"""

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from spa.config.hardware import clamp_to_hardware
from spa.config.schema import Config
from spa.errors import ConfigError
from spa.plugins import defined_in, load_plugin, load_setting, plugins
from spa.prompts.template import ChatTemplate
from spa.types import Engine

log = logging.getLogger(__name__)

RANDOM = "random"
API = "openai"


class PlayingEngine(Engine, Protocol):
    """An engine with its chat template. The template is None if the engine returns text without
    tokens; rollouts then record no tokens."""

    @property
    def template(self) -> ChatTemplate | None:
        """Chat template of the model that responds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """The inputs from which an engine is built. `model` and `template` are set if they are already
    loaded, which is always the case in training."""

    cfg: Config
    model_name: str  # a model or checkpoint as in `model_path`, or a name of `model_info`
    device: torch.device
    model: Any = None  # the policy in training
    template: ChatTemplate | None = None
    store: Path | None = (
        None  # file that caches responses of an API, by default in the run's folder
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """An engine's constructor and capabilities.

    `make` builds the engine. `name` is the value of `actor_rollout_ref.rollout.name` for an engine
    of this folder. `trainable` is true if `load_weights` accepts the policy's weights and
    completions have token ids and log-probs. `raw_logprobs` is true if log-probs always refer to
    the raw logits, regardless of temperature, top-k and top-p.
    """

    make: Callable[[EngineRequest], PlayingEngine]
    name: str = ""
    trainable: bool = False
    raw_logprobs: bool = False


def make_engine(
    cfg: Config,
    model_name: str,
    template: ChatTemplate | None = None,
    device: torch.device | None = None,
) -> PlayingEngine:
    """Create the engine that plays with `model_name`. Rollouts must use its `template`.

    `model_name` is a model or checkpoint as in `model_path`, a name in `model_info` for a model
    behind an API, or `random` for uniformly random legal actions. With
    `actor_rollout_ref.rollout.name=openai`, any other name means `model_config.model_name`.
    `template` spares loading the tokenizer again where the engine does not load it with the model.
    `device` is the device of a local model.

    Raises ModelError if the model cannot be used, and ConfigError if the engine cannot be built
    from a configuration.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    request = EngineRequest(cfg=cfg, model_name=model_name, device=device, template=template)
    return engine_kind(engine_name(cfg, model_name)).make(request)


def engine_kind(name: str) -> EngineKind:
    """Resolve `actor_rollout_ref.rollout.name`: a name in `engines`, a name that another package
    registers, or `package.module:name`.

    The latter two refer to an `EngineKind`, or to a class or function that builds an engine from an
    `EngineRequest`. An engine without an `EngineKind` cannot be used in training.

    Raises ConfigError if `name` cannot be loaded.
    """
    if name in engines():
        return engines()[name]
    key = "actor_rollout_ref.rollout.name"
    kind = load_plugin("engines", name) if name in plugins("engines") else load_setting(key, name)
    if not isinstance(kind, EngineKind) and not callable(kind):
        raise ConfigError(
            f"{key}: {name!r} must name an EngineKind, or a class or function that returns "
            "an engine"
        )
    if isinstance(kind, EngineKind):
        return kind
    return EngineKind(make=cast(Callable[[EngineRequest], PlayingEngine], kind))


def trained_kind(cfg: Config) -> EngineKind:
    """Return the engine kind that samples from the policy during training.

    Raises ConfigError if the engine cannot be used in training, or if responses would be greedy.
    Also raises it if the engine reports log-probs of the raw logits although temperature, top-k or
    top-p change the distribution.
    """
    name = engine_name(cfg)
    rollout = cfg.actor_rollout_ref.rollout
    kind = engine_kind(name)
    # Only with these settings is the sampling distribution the softmax of the raw logits.
    sampling = rollout.temperature == 1 and rollout.top_p >= 1 and rollout.top_k < 1
    if not kind.trainable:
        raise ConfigError(
            f"actor_rollout_ref.rollout.name={name} cannot be trained, because PPO needs the "
            "policy's tokens and weights. Use auto, local, vllm, or your own engine whose "
            "EngineKind sets trainable."
        )
    if not rollout.do_sample or rollout.temperature == 0:
        raise ConfigError(
            "actor_rollout_ref.rollout: PPO cannot train on greedy responses, because all "
            "episodes of a group would be equal. Set do_sample=true and a temperature above "
            "0; validation has its own settings in val_kwargs"
        )
    if kind.raw_logprobs and not sampling:
        raise ConfigError(
            f"actor_rollout_ref.rollout: {name} reports log-probs of the raw logits, which "
            "are wrong under the current temperature, top_p and top_k. Set temperature=1, "
            "top_p=1 and top_k=-1"
        )
    return kind


def engine_name(cfg: Config, model_name: str = "") -> str:
    """Return the engine's name for this machine and model, with `auto` resolved."""
    if model_name == RANDOM:
        return RANDOM
    # Models of `model_info` are always behind an API; `rollout.name` applies to all other models.
    if model_name in cfg.model_info:
        return API
    return on_this_machine(cfg).actor_rollout_ref.rollout.name


def on_this_machine(cfg: Config) -> Config:
    """Return `cfg` with an engine and GPU counts that this machine supports. Each change is logged
    once per process."""
    clamped, warnings = clamp_to_hardware(
        cfg, gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0
    )
    for text in warnings:
        _warn_once(text)
    return clamped


@functools.cache
def _warn_once(text: str) -> None:
    log.warning(text)


def _make_random(request: EngineRequest) -> PlayingEngine:
    # Import late, because `spa.policies.scripted` imports formats and environments, which
    # benchmarks of the local engine do not need.
    from spa.policies.scripted import random_engine

    return random_engine(request.template, max_actions=request.cfg.agent_proxy.max_actions_per_turn)


def _make_scripted(request: EngineRequest) -> PlayingEngine:
    raise ConfigError(
        "actor_rollout_ref.rollout.name=scripted cannot run from a configuration, because "
        "it has no responses. In Python, construct spa.policies.scripted.ScriptedEngine "
        "with your responses"
    )


@functools.cache
def engines() -> Mapping[str, EngineKind]:
    """Return the engines of this package by name: the `KIND` of each file in `spa.engines`, and the
    two engines without a model, `random` and `scripted`."""
    own = (*defined_in("engines", "KIND").values(), RANDOM_KIND, SCRIPTED_KIND)
    return {kind.name: kind for kind in own}


RANDOM_KIND = EngineKind(name=RANDOM, make=_make_random)
SCRIPTED_KIND = EngineKind(name="scripted", make=_make_scripted)

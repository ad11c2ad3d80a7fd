"""The engine that the configuration asks for."""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from spa.config.hardware import clamp_to_hardware
from spa.config.schema import Config
from spa.engines.base import Engine
from spa.engines.local import LocalEngine
from spa.engines.vllm import VllmEngine
from spa.errors import ConfigError
from spa.imports import load_setting
from spa.models.build import engine_autocast, load_actor, load_template, pick_autocast
from spa.plugins import load_plugin, plugins
from spa.policies.scripted import random_engine
from spa.prompts.template import ChatTemplate

log = logging.getLogger(__name__)

RANDOM = "random"
RESPONSES = "api_responses.jsonl"


class PlayingEngine(Engine, Protocol):
    """An engine that knows its chat template: None if it works on text alone, and so should the
    rollout."""

    @property
    def template(self) -> ChatTemplate | None:
        """The template of the model that responds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """Inputs for building an engine. `model` and `template` are set if they are already loaded,
    which is always so in training."""

    cfg: Config
    model_name: str  # a model or checkpoint as in `model_path`, or a name of `model_info`
    device: torch.device
    model: Any = None  # the policy that is trained
    template: ChatTemplate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """Constructor of an engine, and whether it may play in training.

    trainable: `load_weights` takes the policy's weights, and completions have token ids and
    log-probs. raw_logprobs: these are of the raw logits, whatever temperature, top-k and top-p were
    asked for.
    """

    make: Callable[[EngineRequest], PlayingEngine]
    trainable: bool = False
    raw_logprobs: bool = False


def make_engine(
    cfg: Config,
    model_name: str,
    template: ChatTemplate | None = None,
    device: torch.device | None = None,
) -> PlayingEngine:
    """An engine that plays with `model_name`; roll out with its `template`.

    `model_name`: a model or checkpoint as in `model_path`; a name of `model_info` for a model
    behind an API; or `random` for uniformly random legal actions. With
    `actor_rollout_ref.rollout.name=openai` any other name means `model_config.model_name`.
    `template` saves reading the tokenizer again, `device` is that of a local model.

    Raises ModelError if the model cannot be used, ConfigError if the engine cannot be made from a
    configuration.
    """
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    request = EngineRequest(cfg=cfg, model_name=model_name, device=device, template=template)
    return engine_kind(engine_name(cfg, model_name)).make(request)


def engine_kind(name: str) -> EngineKind:
    """The engine that `actor_rollout_ref.rollout.name` means: one of `ENGINES`, or another
    package's or `package.module:name`, each an `EngineKind`, or a class or function that makes an
    engine from an `EngineRequest` (and is not trained on).

    Raises ConfigError if it does not load.
    """
    if name in ENGINES:
        return ENGINES[name]
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
    """The engine that plays with the weights that are being trained.

    Raises ConfigError for an engine that cannot, or whose log-probs are not those of the policy
    that samples.
    """
    name = engine_name(cfg)
    rollout = cfg.actor_rollout_ref.rollout
    kind = engine_kind(name)
    # Only with these settings are the raw logits those of the sampling policy.
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
    """Resolve `actor_rollout_ref.rollout.name` for this machine and model: the same without
    `auto`."""
    if model_name == RANDOM:
        return RANDOM
    # Models of `model_info` are always behind an API; `rollout.name` is about all other models.
    if model_name in cfg.model_info:
        return "openai"
    return on_this_machine(cfg).actor_rollout_ref.rollout.name


def on_this_machine(cfg: Config) -> Config:
    """`cfg` with engine and GPU counts that this machine has. What is lowered is logged, once per
    process."""
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
    return random_engine(request.template, max_actions=request.cfg.agent_proxy.max_actions_per_turn)


def _make_scripted(request: EngineRequest) -> PlayingEngine:
    raise ConfigError(
        "actor_rollout_ref.rollout.name=scripted cannot run from a configuration, because "
        "it has no responses. In Python, construct spa.policies.scripted.ScriptedEngine "
        "with your responses"
    )


def _make_local(request: EngineRequest) -> PlayingEngine:
    cfg = request.cfg
    model = request.model
    template = request.template
    if model is None:
        model, own = load_actor(cfg, request.model_name, request.device)
        template = template or own
    assert template is not None
    return local_engine(cfg, model, template, request.device)


def _make_vllm(request: EngineRequest) -> PlayingEngine:
    cfg = request.cfg
    name = request.model_name
    return vllm_engine(cfg, name, request.template or load_template(cfg, name), request.device)


def _make_api(request: EngineRequest) -> PlayingEngine:
    cfg = request.cfg
    name = request.model_name
    return api_engine(cfg, name if name in cfg.model_info else cfg.model_config.model_name)


ENGINES: dict[str, EngineKind] = {
    "local": EngineKind(make=_make_local, trainable=True),
    "vllm": EngineKind(make=_make_vllm, trainable=True),
    "openai": EngineKind(make=_make_api),
    RANDOM: EngineKind(make=_make_random),
    "scripted": EngineKind(make=_make_scripted),
}


def vllm_engine(
    cfg: Config, model_name: str, template: ChatTemplate, device: torch.device
) -> VllmEngine:
    """vLLM with the settings of `actor_rollout_ref.rollout`. Raises ModelError if it cannot be
    used."""
    if template.images is not None:
        raise ConfigError(
            f"{model_name} is a vision model, but spa sends only text to vLLM: set "
            "actor_rollout_ref.rollout.name=local"
        )
    rollout = on_this_machine(cfg).actor_rollout_ref.rollout
    on_gpu = device.type == "cuda"
    options: dict[str, Any] = {"enforce_eager": rollout.enforce_eager}
    if on_gpu:
        options |= {
            "gpu_memory_utilization": rollout.gpu_memory_utilization,
            "tensor_parallel_size": rollout.tensor_model_parallel_size,
            "enable_chunked_prefill": rollout.enable_chunked_prefill,
            # vLLM requires at least as many tokens in a batch as sequences.
            "max_num_batched_tokens": max(rollout.max_num_batched_tokens, rollout.max_num_seqs),
        }
    dtype = pick_autocast(rollout.dtype, device) or torch.float32
    return VllmEngine(
        model_name,
        template,
        dtype=dtype,
        max_model_len=rollout.max_model_len,
        max_rows=rollout.max_num_seqs,
        sleeps=on_gpu and rollout.free_cache_engine,
        trust_remote_code=cfg.actor_rollout_ref.model.trust_remote_code,
        # The user's `engine_kwargs` override the options above.
        options=options | dict(rollout.engine_kwargs),
    )


def local_engine(
    cfg: Config, model: Any, template: ChatTemplate, device: torch.device
) -> LocalEngine:
    """The engine of this process over a loaded model."""
    rows = cfg.actor_rollout_ref.rollout.max_num_seqs
    return LocalEngine(model, template, max_rows=rows, autocast=engine_autocast(cfg, device))


def api_engine(cfg: Config, name: str, *, store: Path | None = None) -> PlayingEngine:
    """The engine of a `model_info` entry; its responses are kept in `store`, by default in the
    run's folder.

    Raises ConfigError if there is no such entry.
    """
    from spa.engines.api import ApiEngine

    entry = cfg.model_info.get(name)
    if entry is None:
        known = ", ".join(cfg.model_info) or "none; start from the configuration evaluate_api_llm"
        raise ConfigError(f"model_info has no model named {name!r}; the models there: {known}")
    choice = cfg.model_config
    return ApiEngine(
        entry,
        timeout_s=choice.timeout_s,
        max_concurrency=choice.max_concurrency,
        max_retries=choice.max_retries,
        per_minute=choice.requests_per_minute,
        store=store or Path(cfg.trainer.run_dir) / RESPONSES,
    )

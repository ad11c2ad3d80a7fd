"""The engine that the configuration asks for."""

import logging
from pathlib import Path
from typing import Any, Protocol

import torch

from spa.config.hardware import clamp_to_hardware
from spa.config.schema import APIModelConfig, Config
from spa.engines.base import Engine
from spa.engines.local import LocalEngine
from spa.engines.scripted import random_engine
from spa.engines.vllm import VllmEngine
from spa.errors import ConfigError
from spa.models.choose import engine_autocast, load_actor, load_template, pick_autocast
from spa.prompts.template import ChatTemplate

log = logging.getLogger(__name__)

RANDOM = "random"
REPLIES = "api_replies.jsonl"


class PlayingEngine(Engine, Protocol):
    """An engine that knows its chat template: None if it works on text alone, and so should the rollout."""

    @property
    def template(self) -> ChatTemplate | None:
        """The template of the model that replies."""
        ...


def make_engine(
    cfg: Config, model_name: str, template: ChatTemplate | None = None, device: torch.device | None = None
) -> PlayingEngine:
    """An engine that plays with `model_name`; roll out with its `template`.

    `model_name`: a model or checkpoint as in `model_path`; a name of `model_info` for a model behind an API; or
    `random` for uniformly random legal actions. With `actor_rollout_ref.rollout.name=openai` any other name means
    `model_config.model_name`. `template` saves reading the tokenizer again, `device` is that of a local model.

    Raises ModelError if the model cannot be used, ConfigError if the engine cannot be made from a configuration.
    """
    name = engine_name(cfg, model_name)
    if name == RANDOM:
        return random_engine(template, max_actions=cfg.agent_proxy.max_actions_per_turn)
    if name == "openai":
        return api_engine(cfg, model_name if model_name in cfg.model_info else cfg.model_config.model_name)
    if name == "scripted":
        raise ConfigError(
            "actor_rollout_ref.rollout.name=scripted has no replies to give: make a "
            "spa.engines.scripted.ScriptedEngine in code"
        )
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "vllm":
        return vllm_engine(cfg, model_name, template or load_template(cfg, model_name), device)
    model, own_template = load_actor(cfg, model_name, device)
    return local_engine(cfg, model, template or own_template, device)


def engine_name(cfg: Config, model_name: str = "") -> str:
    """What `actor_rollout_ref.rollout.name` means on this machine for this model: the same without `auto`."""
    if model_name == RANDOM:
        return RANDOM
    if model_name in cfg.model_info:
        return "openai"
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    clamped, _ = clamp_to_hardware(cfg, gpus=gpus)
    return clamped.actor_rollout_ref.rollout.name


def vllm_engine(cfg: Config, model_name: str, template: ChatTemplate, device: torch.device) -> VllmEngine:
    """vLLM with the settings of `actor_rollout_ref.rollout`. Raises ModelError if it cannot be used."""
    if template.images is not None:
        raise ConfigError(
            f"{model_name} sees pictures, and vllm is given text: set actor_rollout_ref.rollout.name=local"
        )
    rollout, on_gpu = cfg.actor_rollout_ref.rollout, device.type == "cuda"
    options: dict[str, Any] = {"enforce_eager": rollout.enforce_eager}
    if on_gpu:
        options |= {
            "gpu_memory_utilization": rollout.gpu_memory_utilization,
            "tensor_parallel_size": rollout.tensor_model_parallel_size,
            "enable_chunked_prefill": rollout.enable_chunked_prefill,
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
        options=options | dict(rollout.engine_kwargs),
    )


def local_engine(cfg: Config, model: Any, template: ChatTemplate, device: torch.device) -> LocalEngine:
    """The engine of this process over a loaded model."""
    rows = cfg.actor_rollout_ref.rollout.max_num_seqs
    return LocalEngine(model, template, max_rows=rows, autocast=engine_autocast(cfg, device))


def api_engine(cfg: Config, name: str, *, store: Path | None = None) -> PlayingEngine:
    """The engine of a `model_info` entry; its replies are kept in `store`, by default in the run's folder.

    Raises ConfigError if there is no such entry.
    """
    from spa.engines.api import ApiEngine

    entry = cfg.model_info.get(name)
    if entry is None:
        known = ", ".join(cfg.model_info) or "none; start from the configuration evaluate_api_llm"
        raise ConfigError(f"model_info has no model {name!r} (there are: {known})")
    choice = cfg.model_config
    return ApiEngine(
        _client(entry, choice.timeout_s),
        max_concurrency=choice.max_concurrency,
        max_retries=choice.max_retries,
        per_minute=choice.requests_per_minute,
        store=store or Path(cfg.trainer.run_dir) / REPLIES,
    )


def _client(entry: APIModelConfig, timeout_s: float) -> Any:
    if entry.provider_name == "anthropic":
        from spa.engines.anthropic import AnthropicClient

        return AnthropicClient(entry, timeout_s=timeout_s)
    from spa.engines.openai import OpenAIClient

    return OpenAIClient(entry, timeout_s=timeout_s)

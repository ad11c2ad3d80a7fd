"""What the configuration asks of models, made definite: device, precision, attention, and the loaded policy."""

from pathlib import Path
from typing import Any

import torch

from spa.config.schema import Config
from spa.config.schema_models import Dtype
from spa.models import attention
from spa.models.load import BUILTIN, load_policy, load_tokenizer, model_config
from spa.prompts.template import ChatTemplate


def pick_device(cfg: Config) -> torch.device:
    """The device of the run; also sets the number of CPU threads if the configuration names one."""
    if cfg.trainer.threads is not None:
        torch.set_num_threads(cfg.trainer.threads)
    if cfg.trainer.device != "auto":
        return torch.device(cfg.trainer.device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pick_autocast(name: Dtype, device: torch.device) -> torch.dtype | None:
    """The precision of forward passes in training, or None for that of the weights, which are always float32.
    `auto` is bfloat16 on CUDA and float32 on a CPU."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else None
    return None if name == "float32" else getattr(torch, name)


def engine_autocast(cfg: Config, device: torch.device) -> torch.dtype | None:
    """The precision of sampling. On a CPU it is float32: reading single tokens gains nothing from less."""
    return pick_autocast(cfg.actor_rollout_ref.model.dtype, device) if device.type == "cuda" else None


def pick_attention(name: str, model: str, device: torch.device) -> str:
    """`auto` is plain attention for the built-in model on a CPU, and SDPA otherwise."""
    if name == "plain" or (name == "auto" and device.type == "cpu" and is_tiny(model)):
        return attention.register()
    return "sdpa" if name == "auto" else name


def is_tiny(model: str) -> bool:
    """Whether a model name means the built-in model or a checkpoint trained from it."""
    return model == BUILTIN or _hidden_size(model) <= 256


def _hidden_size(model: str) -> int:
    return model_config(model).get_text_config(decoder=True).hidden_size if Path(model).is_dir() else 1 << 30


def load_actor(cfg: Config, name: str, device: torch.device) -> tuple[Any, ChatTemplate]:
    """Policy and chat template of `name`, on the device."""
    model_cfg = cfg.actor_rollout_ref.model
    template = ChatTemplate(load_tokenizer(name, trust_remote_code=model_cfg.trust_remote_code))
    model = load_policy(
        name,
        attention=pick_attention(model_cfg.attn_implementation, name, device),
        trust_remote_code=model_cfg.trust_remote_code,
    ).to(device)
    return model, template

"""Build the model of a configuration: choose device, precision and attention, load the policy, and
prepare it for training."""

import logging
from functools import cache
from pathlib import Path
from typing import Any

import torch

from spa.config.hardware import threads_of
from spa.config.schema import Config
from spa.config.schema_models import Dtype, ModelConfig
from spa.errors import ModelError
from spa.models import attention
from spa.models.allocator import keep_freed_memory
from spa.models.forward import pack_rows, share_prefix, token_logprobs
from spa.models.load import (
    Critic,
    load_image_reader,
    load_policy,
    load_tokenizer,
    local_folder,
    model_config,
    save_activations,
    stop_ids,
)
from spa.models.lora import add_adapters, load_adapters
from spa.prompts.template import ChatTemplate, check_tokens
from spa.seeds import stream_seed

log = logging.getLogger(__name__)

HEAD_TOLERANCE = 0.05  # in nats; rounding causes at most 1e-5 in float32, 1e-2 in bfloat16


def pick_device(cfg: Config) -> torch.device:
    """Return the device of the run. Also sets the number of CPU threads (`threads_of`)."""
    threads = threads_of(cfg)
    if threads is not None:
        torch.set_num_threads(threads)
    if cfg.trainer.device != "auto":
        return torch.device(cfg.trainer.device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def pick_autocast(name: Dtype, device: torch.device) -> torch.dtype | None:
    """Return the autocast dtype of forward passes in training; None keeps the dtype of the weights,
    which is always float32. `auto` is bfloat16 on CUDA and float32 on a CPU. On a CPU, runs resolve
    `auto` beforehand (`spa.models.precision`)."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else None
    return None if name == "float32" else getattr(torch, name)


def engine_autocast(cfg: Config, device: torch.device) -> torch.dtype | None:
    """Return the autocast dtype of the local engine: `rollout.dtype` on a CPU, the training
    precision on CUDA."""
    asked = cfg.actor_rollout_ref
    return pick_autocast(
        asked.model.dtype if device.type == "cuda" else asked.rollout.dtype, device
    )


def pick_attention(
    name: str, model: str, device: torch.device, dtype: Dtype = "auto", *, code: bool = False
) -> str | None:
    """Resolve the setting `attn_implementation`.

    If the architecture allows it, `auto` becomes plain attention on a CPU, and packed attention on
    CUDA in half precision. In all other cases, `auto` becomes None, which means SDPA if the
    architecture supports it.
    """
    if name == "plain":
        return attention.register()
    if name != "auto":
        return name
    if not attention.supports_plain_attention(model_config(model, code=code)):
        return None
    if device.type == "cpu":
        return attention.register()
    half = pick_autocast(dtype, device) or torch.float32
    return None if attention.flash_missing(device, half) else attention.register(attention.PACKED)


def is_tiny(model: str, *, code: bool = False) -> bool:
    """Return whether a model is the built-in one, or another small local model that plain attention
    supports."""
    # The size of a Hub model is unknown, because it may not have been downloaded yet.
    if local_folder(model) is None:
        return False
    config = model_config(model, code=code)
    return (
        attention.supports_plain_attention(config)
        and config.get_text_config(decoder=True).hidden_size <= 256
    )


def load_actor(
    cfg: Config, name: str, device: torch.device, settings: ModelConfig | None = None
) -> tuple[Any, ChatTemplate]:
    """Load the policy `name` onto the device, and its chat template. `settings` is a model section
    of the configuration, by default PPO's.

    Raises ModelError if model and tokenizer do not match, or if the model's context is too short
    for the episodes.
    """
    model_cfg = settings or cfg.actor_rollout_ref.model
    template = load_template(cfg, name)
    model = load_policy(
        name,
        attention=pick_attention(
            model_cfg.attn_implementation,
            name,
            device,
            model_cfg.dtype,
            code=model_cfg.trust_remote_code,
        ),
        trust_remote_code=model_cfg.trust_remote_code,
    )
    check_vocabulary(name, model, template)
    # Saved with the checkpoint, so that a server stops at the same tokens.
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.eos_token_id = sorted(template.stop_ids)
    check_context(name, model.config, cfg.actor_rollout_ref.rollout.max_model_len)
    model = model.to(device)
    if device.type == "cpu" and not is_tiny(name, code=model_cfg.trust_remote_code):
        keep_freed_memory()
    autocast = pick_autocast(model_cfg.dtype, device)
    # Check in the training precision, because the log-probs have to agree there.
    with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
        check_head(name, model)
    return model, template


def load_template(cfg: Config, name: str) -> ChatTemplate:
    """Load the chat template of a model, or the configured one, and check that an inference server
    would produce the same tokens.

    Raises ModelError if there is no template, or if a server would produce other tokens than
    training uses.
    """
    model_cfg = cfg.actor_rollout_ref.model
    code = model_cfg.trust_remote_code
    template = ChatTemplate(
        load_tokenizer(name, trust_remote_code=code, chat_template=model_cfg.chat_template),
        images=load_image_reader(name, code=code),
        stop_ids=stop_ids(name, code=code),
    )
    check_tokens(template)
    used = (
        f"replaced by an append-only template, because {template.pinned}; checkpoints save the replacement"
        if template.pinned
        else "used unchanged"
    )
    _log_notice(f"The chat template of {name} is {used}")
    return template


@cache
def _log_notice(text: str) -> None:
    """Log a notice once, however often a model is loaded."""
    # Equal to `FILE_ONLY` in spa.run.console, which keeps the line out of the console.
    log.info(text, extra={"file_only": True})


def make_trainable(
    model: Any,
    settings: ModelConfig,
    device: torch.device,
    *,
    seed: int,
    adapters: Path | None = None,
) -> None:
    """Prepare a loaded policy or critic for training as its model section specifies.

    The settings are LoRA adapters (initialized from `seed`, or read from the folder `adapters`),
    gradient checkpointing, packing and compilation.
    """
    body = model.body if isinstance(model, Critic) else model
    if settings.lora_rank > 0:
        add_adapters(
            body,
            rank=settings.lora_rank,
            alpha=settings.lora_alpha,
            target_modules=settings.target_modules,
            seed=stream_seed(seed, "lora"),
        )
        if adapters is not None:
            load_adapters(body, adapters)
    if settings.enable_gradient_checkpointing:
        save_activations(body)
    if settings.packing or (settings.packing is None and device.type == "cuda"):
        autocast = pick_autocast(settings.dtype, device)
        # Packing is tested in the training precision, which limits how closely packed and padded
        # rows can agree.
        with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
            pack_rows(model)
    if settings.use_torch_compile:
        compile_body(model)
    elif device.type == "cpu" and not settings.enable_gradient_checkpointing:
        # Sharing a prefix needs its keys and values, which gradient checkpointing would not keep.
        share_prefix(model)


def compile_body(model: Any) -> None:
    """Compile the forward pass of a policy's or critic's body for sequences of any length. Engines
    that share the model switch compilation off while they sample."""
    body = model.body if isinstance(model, Critic) else model.base_model
    body.compile(dynamic=True)


def check_vocabulary(name: str, model: Any, template: ChatTemplate) -> None:
    """Raise ModelError if texts or the chat template can produce ids for which the model has no
    embedding."""
    tokenizer = template.tokenizer
    # Text-only Gemma 3 models share a tokenizer with the vision models, but do not embed its image
    # token. Text is never encoded as special tokens, so only the special tokens of the template are
    # checked.
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    told = template.start(({"role": "user", "content": "Hello"},), "")
    # Compare the highest id, not the number of ids: vocabularies have gaps, and embeddings often
    # have spare rows.
    highest = max({*tokenizer.get_vocab().values()} - special | {*told, *template.stop_ids})
    rows = model.get_input_embeddings().weight.shape[0]
    if highest >= rows:
        raise ModelError(
            f"{name}: the tokenizer has token ids up to {highest}, but the model embeds only "
            f"{rows} tokens. The tokenizer belongs to another model; copy the model's own "
            "tokenizer files into its folder."
        )


def check_context(name: str, config: Any, max_model_len: int) -> None:
    """Raise ModelError if the model's context is shorter than the longest possible episode."""
    longest = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    if longest is not None and longest < max_model_len:
        raise ModelError(
            f"{name}: the model reads at most {longest} tokens, but "
            f"actor_rollout_ref.rollout.max_model_len={max_model_len}. Set max_model_len to "
            f"{longest} or less, and lower response_length and max_turn to fit."
        )


@torch.no_grad()
def check_head(name: str, model: Any) -> None:
    """Raise ModelError if log-probs computed in chunks differ from the model's own. This rejects
    architectures that transform their logits in a way unknown to spa, because training would use
    wrong log-probs."""
    # Any tokens will do, because the check compares two ways to compute the same log-probs.
    ids = torch.arange(1, 7, device=model.device)[None]
    mask = torch.ones((1, 5), dtype=torch.bool, device=model.device)
    ours, _ = token_logprobs(model, ids, mask)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    theirs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    gap = float((ours - theirs).abs().max())
    if gap > HEAD_TOLERANCE:
        raise ModelError(
            f"{name}: spa does not support the logit transformation of the architecture "
            f"{model.config.model_type} (log-probs differ from the model's by {gap:.2g}). Use a "
            "model of another architecture."
        )

"""LoRA (arXiv 2106.09685) through peft: add adapters to a model, save them separately, and merge
them into plain weights on export.

The layers are added to the model in place, so that code for causal language models also works with
adapters.
"""

import copy
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from spa.errors import ModelError, one_line
from spa.install import install_hint

log = logging.getLogger(__name__)

ADAPTER = "adapter"  # folder of the adapters, next to the merged weights
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."  # peft's prefix of every key in a saved adapter
_NAME = "default"
_READ = (
    {"r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules"}
    | {"exclude_modules", "layers_to_transform", "layers_pattern", "fan_in_fan_out", "lora_dropout"}
    | {"base_model_name_or_path", "revision", "peft_type", "task_type", "auto_mapping"}
    | {"peft_version", "inference_mode"}
)
"""Settings of a saved adapter that merging supports, or that do not affect it."""
_PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that do not change the weights of the base model."""
_MERGE = (
    "Merge the adapter into its base model with peft (merge_and_unload), and name the merged model."
)


def add_adapters(
    model: Any,
    *,
    rank: int,
    alpha: float,
    target_modules: str | Sequence[str] = "all-linear",
    seed: int,
) -> None:
    """Add LoRA layers to `model` in place, and freeze all other weights. Initially the layers have
    no effect.

    `target_modules` is "all-linear" (all linear layers except the output layer) or a list of module
    names. Raises ModelError if no module has such a name, or if peft is not installed.
    """
    peft = _peft()
    targets = target_modules if isinstance(target_modules, str) else list(target_modules)
    # No dropout, because PPO compares the log-probs of two forward passes.
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", target_modules=targets
    )
    config.base_model_name_or_path = getattr(model, "name_or_path", None) or None
    linear = {
        name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, nn.Linear)
    }
    hint = f"Use all-linear, or some of: {', '.join(sorted(linear))}."
    try:
        _inject(model, config, seed)
    except ValueError as error:
        raise ModelError(
            f"lora.target_modules: the model has no module named {targets}. {hint}"
        ) from error
    # peft raises an error only if none of the names matches a module. `lm_head` may be missing,
    # because a critic has no output layer.
    adapted = [f".{name}" for name in _tuner_layers(model)]
    named = [] if isinstance(targets, str) else [name for name in targets if name != "lm_head"]
    missing = [name for name in named if not any(layer.endswith(f".{name}") for layer in adapted)]
    if missing:
        log.warning(
            "lora.target_modules: the model has no linear layer named %s, so it gets no adapter. %s",
            ", ".join(missing),
            hint,
        )


def _inject(model: Any, config: Any, seed: int) -> None:
    # `fork_rng` restores the global generator, so that LoRA does not change other random numbers.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # peft samples the first matrices from the global generator
        _peft().inject_adapter_in_model(config, model, _NAME)
    uses = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    for name, layer in _tuner_layers(model).items():
        if uses[id(layer.get_base_layer().weight)] > 1:
            raise ModelError(
                f"the LoRA adapter changes {name}, whose weight is that of another layer, too (tied "
                "embeddings), so the two cannot be merged. Leave this module out of target_modules."
            )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_is_adapter(name))


def has_adapters(model: Any) -> bool:
    """Return whether `add_adapters` was called on the model."""
    return hasattr(model, "peft_config")


@contextmanager
def adapters_off(model: Any) -> Iterator[None]:
    """Switch the adapters off within the block. The model then acts as the reference policy, so the
    reference needs no extra memory."""
    layers = _tuner_layers(model)
    for layer in layers.values():
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers.values():
            layer.enable_adapters(True)
        # `enable_adapters` changes `requires_grad`, so restore it: only adapters are trained.
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(_is_adapter(name))


def save_model(model: Any, folder: Path) -> None:
    """Save a plain Hugging Face model to `folder`. Adapters are merged into the weights, and also
    saved separately in `folder/adapter`, in peft's layout."""
    if not has_adapters(model):
        model.save_pretrained(folder)
        return
    # Servers read the merged weights; a resumed run reads the separate adapters.
    model.save_pretrained(folder, state_dict=merged_state(model))
    peft = _peft()
    apart = Path(folder) / ADAPTER
    apart.mkdir(parents=True, exist_ok=True)
    state = peft.get_peft_model_state_dict(model, adapter_name=_NAME)
    save_file(
        {_PREFIX + key: value.contiguous().cpu() for key, value in state.items()},
        apart / ADAPTER_WEIGHTS,
    )
    config = copy.copy(model.peft_config[_NAME])
    config.inference_mode = True
    # peft keeps the names in a set, whose order differs between processes.
    if not isinstance(config.target_modules, str):
        config.target_modules = sorted(config.target_modules)
    config.save_pretrained(apart)


def load_adapters(model: Any, folder: Path) -> None:
    """Load adapters saved by `save_model` or peft into a model with adapters of the same shape.

    Raises ModelError if they are missing or do not fit.
    """
    path = Path(folder) / ADAPTER_WEIGHTS
    if not path.is_file():
        raise ModelError(
            f"{folder}: the adapter has no {ADAPTER_WEIGHTS}. Copy the whole folder of the "
            "saved adapter."
        )
    state = {key.removeprefix(_PREFIX): value for key, value in load_file(path).items()}
    own = _peft().get_peft_model_state_dict(model, adapter_name=_NAME)
    wrong = sorted(
        key for key in own.keys() | state.keys() if _shape(own.get(key)) != _shape(state.get(key))
    )
    if wrong:
        raise ModelError(
            f"{folder}: the adapter does not fit the model: {len(wrong)} of its weights are "
            f"missing or have another shape, for example {wrong[0]}. Use the rank, target "
            "modules and base model that the adapter was trained with."
        )
    _peft().set_peft_model_state_dict(model, state, adapter_name=_NAME)


def read_adapter(folder: Path) -> dict[str, Any]:
    """Read the settings of a saved adapter. Raises ModelError if they are unreadable, are not for
    LoRA, or name no base model."""
    path = Path(folder) / ADAPTER_CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path}: the adapter's configuration cannot be read ({error}). Copy the whole "
            "folder of the adapter again."
        ) from error
    base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"{path}: the key base_model_name_or_path is missing. Set it to the model that "
            "the adapter was trained on."
        )
    if Path(base).expanduser().resolve() == Path(folder).resolve():
        raise ModelError(
            f"{path}: base_model_name_or_path names the adapter's own folder. Set it to the "
            "base model."
        )
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise ModelError(
            f"{path}: the adapter is of kind {kind}, but spa reads only LoRA adapters. {_MERGE}"
        )
    return config


def apply_adapter(model: Any, folder: Path) -> None:
    """Merge a saved adapter into a model without adapters. Raises ModelError if it is not plain
    LoRA, or does not fit the model."""
    config = _saved_config(folder)
    try:
        _inject(model, config, seed=0)
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{folder}: the adapter does not fit its base model ({one_line(error)[:300]}). "
            "Set base_model_name_or_path in its configuration to the model that it was "
            "trained on."
        ) from error
    load_adapters(model, folder)
    # Compute the merged weights before the adapters are removed, and load them into the plain
    # layers.
    state = merged_state(model)
    for name, layer in _tuner_layers(model).items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer.get_base_layer())
    del model.peft_config
    model.load_state_dict(state)
    model.requires_grad_(True)


def _saved_config(folder: Path) -> Any:
    """Read peft's configuration of a saved adapter. Raises ModelError if it has settings that
    merging would ignore."""
    path = Path(folder) / ADAPTER_CONFIG
    lora = _peft().LoraConfig
    read_adapter(folder)
    try:
        config = lora.from_pretrained(str(folder))
        plain = lora()
    except Exception as error:  # a wrong value can raise any exception
        raise ModelError(
            f"{path}: peft cannot read the adapter's configuration ({one_line(error)[:300]}). "
            "Copy the file again, or install the version of peft that saved it."
        ) from error
    settings = {field.name: getattr(config, field.name) for field in fields(config)}
    start = settings.pop("init_lora_weights")
    wrong = [
        name
        for name, value in settings.items()
        if name not in _READ and value != getattr(plain, name)
    ]
    if start in _PLAIN_STARTS:
        config.init_lora_weights = True  # the saved weights replace the initial ones
    else:
        wrong.append(f"init_lora_weights={start}")
    if wrong:
        raise ModelError(
            f"{path}: spa does not support these settings of the adapter: {', '.join(wrong)}. "
            f"{_MERGE}"
        )
    config.inference_mode = False
    config.target_modules = config.target_modules or "all-linear"
    return config


@torch.no_grad()
def merged_state(model: Any) -> dict[str, torch.Tensor]:
    """Return the model's weights with the adapters merged, under the names of a model without
    adapters."""
    state = {
        key.replace(".base_layer.", "."): value
        for key, value in model.state_dict().items()
        if not _is_adapter(key)
    }
    for name, layer in _tuner_layers(model).items():
        state[f"{name}.weight"] = merged_weight(layer)
    return state


def merged_weight(layer: Any) -> torch.Tensor:
    """Return the weight of a linear layer. If it has an adapter, the scaled product of the
    adapter's two matrices is added."""
    if not hasattr(layer, "get_delta_weight"):
        return layer.weight
    return layer.get_base_layer().weight + layer.get_delta_weight(_NAME)


def _is_adapter(name: str) -> bool:
    return "lora_" in name


def _tuner_layers(model: Any) -> dict[str, Any]:
    if not has_adapters(model):
        return {}
    from peft.tuners.tuners_utils import BaseTunerLayer

    return {
        name: module for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)
    }


def _shape(value: torch.Tensor | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value.shape)


def _peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise ModelError(
            f"LoRA needs the optional extra lora of spa: {install_hint('lora')}"
        ) from error
    return peft

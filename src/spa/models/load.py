"""Load policies, critics and tokenizers from the built-in model, a local folder, a spa checkpoint,
or the Hub."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)
from transformers.utils import logging as hf_logging

from spa.errors import ModelError, SpaError, one_line
from spa.models.forward import VALUE_HEAD, Critic
from spa.models.hub import download_model
from spa.models.lora import ADAPTER_CONFIG, apply_adapter, read_adapter
from spa.models.vision import ImageReader, image_reader

BUILTIN = "builtin:tiny"
BUILTIN_GAMES = ("frozen_lake", "sokoban", "sudoku")
"""Environment types on whose texts the built-in model was pre-trained. A test compares this list
with the pre-training data."""
KEPT = Path("~/.cache/spa/models")
"""Folder of imported models, which have plain names such as `smollm2`. `spa model import-gguf
smollm2` writes to it."""
# Matches `global_step_1505`, the folder name of the original's checkpoints and of spa's.
_STEP = re.compile(r"global_step_(\d+)")


def model_source(name: str, *, code: bool = False) -> Path:
    """Resolve a model name to a folder: a local folder, or the folder of the built-in model or of a
    Hub model in the local cache.

    If the folder is not itself a model but has `global_step_N` children (a downloaded checkpoint),
    the child with the largest N is returned. The folder may also contain only a LoRA adapter.

    With `code`, the Python files of a Hub model are downloaded, too. Raises ModelError if there is
    no such model, or if its folder lacks a configuration or safetensors weights.
    """
    path = local_folder(name)
    if path is None:
        if name == "smollm2":
            raise ModelError(
                f"The model {name} is not on this machine. Download it once (100 MB): spa "
                "model import-gguf smollm2"
            )
        if name.startswith((".", "/", "~")) or name.count("/") != 1:
            raise ModelError(
                f"{name}: the model folder does not exist. Name an existing folder, a "
                f"Hugging Face model (owner/name), smollm2 or {BUILTIN}."
            )
        path = download_model(name, code=code)
    weights = indexed_weights(path) or any(path.glob("*.safetensors"))
    if not weights and (merge := _merge_command(path)):
        raise ModelError(
            f"{path}: the folder holds the shards of a training and no whole model. Merge them, then name the "
            f"new folder: {merge}"
        )
    if not (path / "config.json").is_file():
        # By number: as text, global_step_9 would come after global_step_100.
        steps = sorted(
            (int(m[1]), m[0]) for child in path.iterdir() if (m := _STEP.fullmatch(child.name))
        )
        if (path / ADAPTER_CONFIG).is_file():
            return path  # the folder contains only an adapter
        if not steps or not (path / steps[-1][1] / "config.json").is_file():
            raise ModelError(
                f"{path}: the folder has no config.json, so it is not a model folder. Name "
                "the folder that contains config.json."
            )
        path = path / steps[-1][1]
    if not indexed_weights(path) and not any(path.glob("*.safetensors")):
        raise ModelError(
            f"{path}: the folder has no *.safetensors weights, and spa reads no other "
            "format. To convert other weights, load them with transformers, if you trust "
            "them, and call save_pretrained."
        )
    return path


def require_whole_model(name: str, *, code: bool) -> Path:
    """Return the folder of a model that vLLM can load. Raises ModelError for a LoRA adapter without
    its base model."""
    source = model_source(name, code=code)
    if not (source / "config.json").is_file():
        raise ModelError(
            f"{name} is a LoRA adapter, and vLLM loads whole models only. Set "
            "actor_rollout_ref.rollout.name=local, or name a folder with the merged model."
        )
    return source


def base_source(name: str, *, code: bool) -> Path:
    """Return the folder of a model; for a LoRA adapter, return the folder of its base model."""
    source = model_source(name, code=code)
    if (source / "config.json").is_file():
        return source
    return base_source(read_adapter(source)["base_model_name_or_path"], code=code)


def _merge_command(folder: Path) -> str | None:
    """Return the shell command that merges the weight shards in a folder into a model; None if the
    folder has no shards."""
    if any(folder.glob("model_world_size_*_rank_*.pt")):
        return f"python -m verl.model_merger merge --backend fsdp --local_dir {folder} --target_dir OUT"
    if any(folder.glob("*.distcp")):
        return (
            f"accelerate merge-weights {folder} OUT (and copy config.json and the tokenizer to OUT)"
        )
    return None


def _compiled_prefix(folder: Path) -> dict[str, str] | None:
    """Return the key mapping for weights of a compiled model, whose names begin with `_orig_mod.`;
    None for other weights."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            if any(name.startswith("_orig_mod.") for name in file.keys()):  # noqa: SIM118 - no dict
                return {r"^_orig_mod\.": ""}
    return None


def indexed_weights(folder: Path) -> list[Path]:
    """Return the weight files in subfolders that a model's index lists. Raises ModelError if the
    index is damaged."""
    named: set[str] = set()
    for index in sorted(folder.glob("*.safetensors.index.json")):
        try:
            named |= {
                str(name)
                for name in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
            }
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise ModelError(
                f"{index}: the index of the weights is damaged ({error}). Copy or download the "
                "file again"
            ) from error
    return [folder / name for name in sorted(named) if "/" in name]


def local_folder(name: str) -> Path | None:
    """Return the local folder that a model name refers to: a path, or the folder of the built-in
    model or of an imported model. None if there is no such folder."""
    if name == BUILTIN:
        return Path(str(resources.files("spa"))) / "assets" / "tiny"
    snapshots = [
        Path(name).expanduser(),
        *([kept_model(name)] if re.fullmatch(r"[\w-]+", name) else []),
    ]
    return next((path for path in snapshots if path.is_dir()), None)


def kept_model(name: str) -> Path:
    """Return the folder of the imported model `name`. It may not exist."""
    return KEPT.expanduser() / name


def load_tokenizer(
    name: str, *, trust_remote_code: bool = False, chat_template: str | None = None
) -> Any:
    """Load the tokenizer of a model. `chat_template` is a file with a Jinja chat template that
    replaces the tokenizer's own.

    Folders that name PreTrainedTokenizerFast are loaded with exactly that class, because
    AutoTokenizer replaces an unusual tokenizer by the one it expects for the architecture.
    """
    source = model_source(name, code=trust_remote_code)
    if not (source / "tokenizer_config.json").is_file():
        source = base_source(name, code=trust_remote_code)
    path = source / "tokenizer_config.json"
    with _explained(name):
        kind = (
            json.loads(path.read_text(encoding="utf-8")).get("tokenizer_class", "")
            if path.is_file()
            else ""
        )
        if kind in ("PreTrainedTokenizerFast", "TokenizersBackend"):
            tokenizer = PreTrainedTokenizerFast.from_pretrained(source)
        else:
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    if chat_template is not None:
        try:
            tokenizer.chat_template = Path(chat_template).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(
                f"actor_rollout_ref.model.chat_template: {chat_template} cannot be read "
                f"({error}). Name a text file with a Jinja chat template."
            ) from error
    # Some editors begin a file with a byte-order mark, which would be the first token of every
    # prompt.
    if isinstance(tokenizer.chat_template, str):
        tokenizer.chat_template = tokenizer.chat_template.removeprefix("\ufeff")
    return tokenizer


def stop_ids(name: str, *, code: bool = False) -> tuple[int, ...]:
    """Return the token ids that end a response according to the model's generation config; empty
    without a generation config. Raises ModelError if it is not valid JSON."""
    path = base_source(name, code=code) / "generation_config.json"
    if not path.is_file():
        return ()
    with _explained(name):
        ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    # One id, a list of ids, or null.
    return tuple(i for i in (ids if isinstance(ids, list) else [ids]) if isinstance(i, int))


def load_image_reader(name: str, *, code: bool = False) -> ImageReader | None:
    """Load the image reader of a model; None for a text-only model. Raises ModelError if it cannot
    be used."""
    source = base_source(name, code=code)
    with _explained(name):
        return image_reader(source, code=code)


def load_policy(
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    attention: str | None = None,
    trust_remote_code: bool = False,
    head: bool = True,
) -> Any:
    """Load a causal LM in evaluation mode; without `head`, only its body. Reads safetensors only.

    If `attention` is None, SDPA is used where the architecture supports it. Otherwise, for example
    with attention sinks or soft caps, the eager implementation of transformers is used. If the
    folder contains only a LoRA adapter, the adapter is merged into its base model. Raises
    ModelError if weights are missing or do not fit the configuration.
    """
    source = model_source(name, code=trust_remote_code)
    if not (source / "config.json").is_file():
        return _with_adapter(
            source, dtype=dtype, attention=attention, trust_remote_code=trust_remote_code
        )
    hf_logging.disable_progress_bar()  # the stages show their own progress
    with _explained(name):
        renamed = _compiled_prefix(source)
        kind = (
            (AutoModelForImageTextToText if _needs_vision_class(source) else AutoModelForCausalLM)
            if head
            else AutoModel
        )
        loaded: Any = kind.from_pretrained(
            source,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            # Passed only if needed: it would replace the architecture's own key mapping.
            **({"key_mapping": renamed} if renamed else {}),
        )
    model, info = loaded
    # transformers only warns about missing weights and initializes them at random.
    if info["missing_keys"]:
        raise ModelError(
            f"{name}: the weights of {len(info['missing_keys'])} parameters are missing, "
            f"for example {min(info['missing_keys'])}. The folder is incomplete or not a "
            "causal language model; copy or download the whole model again."
        )
    check_finite(model, name)
    return model


@torch.no_grad()
def check_finite(model: nn.Module, name: str) -> None:
    """Raise ModelError if a weight is NaN or infinite: such a model produces noise, and no setting
    can fix it.

    The sum of a tensor is computed first, in one pass over the memory. Single weights are checked
    only if the sum is not finite.
    """
    for key, weight in model.named_parameters():
        if (
            weight.is_meta
            or torch.isfinite(weight.sum(dtype=torch.float32))
            or torch.isfinite(weight).all()
        ):
            continue
        raise ModelError(
            f"{name}: the weight {key} has {int((~torch.isfinite(weight)).sum()):,} values "
            f"of {weight.numel():,} that are NaN or infinite. Its training diverged, or the "
            "file is damaged; use another checkpoint."
        )


def _needs_vision_class(source: Path) -> bool:
    """Return whether the architecture is a vision-language model that the text-only class cannot
    load."""
    kind = json.loads((source / "config.json").read_text(encoding="utf-8")).get("model_type")
    known: Any = CONFIG_MAPPING[kind] if kind in CONFIG_MAPPING else None  # noqa: SIM401 - `get` does not load lazily
    return (
        known in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and known not in MODEL_FOR_CAUSAL_LM_MAPPING
    )


def _with_adapter(folder: Path, **settings: Any) -> Any:
    """Load the base model that an adapter names, with the adapter merged into it."""
    base = read_adapter(folder)["base_model_name_or_path"]
    try:
        model = load_policy(base, **settings)
    except ModelError as error:
        raise ModelError(
            f"{folder}: the base model of the adapter cannot be loaded. {error}"
        ) from error
    apply_adapter(model, folder)
    # Adapters that are trained on this model name the adapter's folder as their base.
    model.name_or_path = str(folder)
    check_finite(model, str(folder))
    return model


def load_critic(
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    attention: str | None = None,
    trust_remote_code: bool = False,
) -> Critic:
    """Load a saved critic, or build a critic on the body of a causal LM."""
    source = model_source(name, code=trust_remote_code)
    # A saved critic is a body without a language-model head.
    saved = (source / VALUE_HEAD).is_file()
    model = load_policy(
        name, dtype=dtype, attention=attention, trust_remote_code=trust_remote_code, head=not saved
    )
    critic = Critic(model if saved else model.base_model)
    critic.load_head(source)
    check_finite(critic.value_head, name)
    return critic


def save_activations(model: Any) -> None:
    """Enable gradient checkpointing: the backward pass recomputes activations, so they need not be
    stored."""
    # The name of the method depends on the version of transformers.
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    enable()


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn the loader's errors into a ModelError that says how to fix the problem."""
    try:
        yield
    except (SpaError, MemoryError):
        raise
    # A damaged file or a model's own code can raise any exception.
    except Exception as error:
        text = one_line(error) or type(error).__name__
        hint = "Check that the model folder is complete and that its weights match its config.json."
        if "trust_remote_code" in text:
            text = "the model needs Python code from its own folder"
            hint = (
                "If you trust the model's code, set actor_rollout_ref.model.trust_remote_code=true."
            )
        elif "does not recognize this architecture" in text or "model type" in text:
            hint = (
                "A newer version of transformers may support the model's architecture: pip "
                "install -U transformers."
            )
        raise ModelError(f"cannot load the model {name!r}: {text[:300]}\n{hint}") from error


def model_config(name: str, *, code: bool = False) -> Any:
    """Load the configuration of a model, without its weights. `code` allows running the model's
    Python files."""
    source = base_source(name, code=code)
    with _explained(name):
        return AutoConfig.from_pretrained(source, trust_remote_code=code)

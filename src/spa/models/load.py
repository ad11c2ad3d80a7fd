"""Policies, critics and tokenizers from the built-in model, a local folder, a checkpoint of ours, or the Hub."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from spa.errors import ModelError

BUILTIN = "builtin:tiny"
VALUE_HEAD = "value_head.safetensors"


def model_source(name: str) -> str:
    """Where a model name points to: the folder of the built-in model, an existing local folder, or a Hub name.

    Raises ModelError for a folder that lacks a configuration or weights.
    """
    if name == BUILTIN:
        return str(resources.files("spa") / "assets" / "tiny")
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path}: no config.json, so this is not a model folder. Point to the folder that has it.")
        if not any(path.glob("*.safetensors")):
            raise ModelError(
                f"{path}: no *.safetensors weights. Only safetensors are read; convert other formats first."
            )
        return str(path)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ModelError(f"{name}: there is no such model folder. Give a folder, a Hub name (owner/name) or {BUILTIN}.")
    return name


def load_tokenizer(name: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model.

    Folders that name PreTrainedTokenizerFast are loaded as just that, because the automatic class replaces unusual
    tokenizers by the one it expects for the architecture.
    """
    source = model_source(name)
    path = Path(source) / "tokenizer_config.json"
    if path.is_file():
        kind = json.loads(path.read_text(encoding="utf-8")).get("tokenizer_class", "")
        if kind in ("PreTrainedTokenizerFast", "TokenizersBackend"):
            return PreTrainedTokenizerFast.from_pretrained(source)
    with _explained(name):
        return AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)


def load_policy(
    name: str, *, dtype: torch.dtype = torch.float32, attention: str = "sdpa", trust_remote_code: bool = False
) -> Any:
    """A causal LM in evaluation mode. Reads safetensors only."""
    source = model_source(name)
    with _explained(name):
        return AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
        )


class Critic(nn.Module):
    """A value head on the body of a causal LM; the head starts at zero, so that first values are zero."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body
        self.value_head = nn.Linear(body.config.get_text_config(decoder=True).hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        self.value_head.to(next(body.parameters()).dtype)

    @property
    def config(self) -> Any:
        """The body's configuration."""
        return self.body.config

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """input_ids int64 [B, T] -> values float32 [B, T]: the value of the state after reading each token."""
        hidden = self.body(input_ids=input_ids, use_cache=False).last_hidden_state
        return self.value_head(hidden).squeeze(-1).float()

    def save_pretrained(self, folder: Path) -> None:
        """The body as a Hugging Face folder, the head beside it."""
        self.body.save_pretrained(folder)
        save_file({k: v.contiguous() for k, v in self.value_head.state_dict().items()}, Path(folder) / VALUE_HEAD)


def load_critic(
    name: str, *, dtype: torch.dtype = torch.float32, attention: str = "sdpa", trust_remote_code: bool = False
) -> Critic:
    """A critic on the body of a causal LM (or a saved critic, whose head is read too)."""
    source = Path(model_source(name))
    policy = load_policy(name, dtype=dtype, attention=attention, trust_remote_code=trust_remote_code)
    critic = Critic(policy.base_model)
    if (source / VALUE_HEAD).is_file():
        critic.value_head.load_state_dict(load_file(source / VALUE_HEAD))
    return critic


class _explained:
    """Turns the loader's errors into one line that says what to do."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, OSError | ValueError | KeyError):
            return
        text = str(error).splitlines()[0] if str(error) else kind.__name__
        raise ModelError(
            f"cannot load the model {self.name!r}: {text}\n"
            "Without a network, set model_path to a local folder (download it elsewhere with `hf download NAME "
            f"--local-dir FOLDER`) or to {BUILTIN}. A gated model needs `hf auth login` once."
        ) from error


def model_config(name: str) -> Any:
    """The configuration of a model, without its weights."""
    with _explained(name):
        return AutoConfig.from_pretrained(model_source(name))

"""Convert GGUF files to model folders with safetensors weights, tokenizer, chat template, and a
README that names the licence."""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as hf_logging

from spa.errors import ModelError, one_line
from spa.install import install_hint

# The first four bytes of every GGUF file.
MAGIC = b"GGUF"
SPLITS_DIGITS = frozenset(
    {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
)
"""Values of `tokenizer.ggml.pre` for pre-tokenizers that split like GPT-2's, but also separate
every digit. transformers treats them like GPT-2's. Source: llama.cpp, llama-vocab.cpp (`\\p{N}`
before GPT-2's expression)."""
READ_AS_THEY_ARE = frozenset(
    {"", "default", "gpt-2", "gpt2", "llama-bpe", "llama3", "llama-v3", "qwen2", "tekken"}
)
"""Values of `tokenizer.ggml.pre` that transformers handles in the same way as llama.cpp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """An imported model and its properties."""

    folder: Path
    name: str
    architecture: str
    parameters: int  # number of parameters
    licence: str
    remarks: tuple[str, ...]  # warnings for the user


def import_gguf(file: Path, folder: Path) -> Imported:
    """Convert a GGUF file to a new model folder, which `model_path` can name. Quantized weights are
    converted to float32 without rounding.

    Raises ModelError if the file is not a complete GGUF, if transformers cannot read all of it, or
    if the folder exists and is not empty.
    """
    check_file(file)
    # An empty folder is accepted, since the user may have created it for the model.
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"the folder {folder} exists. Choose another folder, or remove {folder}.")
    fields = read_fields(file)
    remarks = []
    # Without this, transformers would warn that it dequantizes the weights, which is intended here.
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = plain_model(file)
    except ModelError:
        raise
    except Exception as error:  # a damaged file can raise errors of many types
        text = one_line(error)[:300] or type(error).__name__
        raise ModelError(
            f"{file}: transformers cannot read this GGUF ({fields['architecture']}): {text}\n"
            "Convert the original weights, or use a GGUF of another architecture or quantization."
        ) from error
    pre = fields["pre"]
    if pre in SPLITS_DIGITS:
        split_digits(tokenizer)
    elif pre not in READ_AS_THEY_ARE:
        remarks.append(
            f"transformers may read the pre-tokenizer {pre} as that of GPT-2. Compare the tokens of the converted "
            "model with those of the original model"
        )
    if tokenizer.chat_template is None:
        remarks.append("the GGUF has no chat template. Set actor_rollout_ref.model.chat_template")
    home = folder.resolve()  # resolved, because the path `.` has no name
    # The model is written next to the target and renamed at the end, so that a crash cannot leave
    # an incomplete model at the target.
    part = home.with_name(f".{home.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    (part / "README.md").write_text(card(file, fields), encoding="utf-8")
    if folder.is_dir():  # moved file by file, because the folder may be the working directory
        for made in part.iterdir():
            made.rename(folder / made.name)
        part.rmdir()
    else:
        part.rename(folder)
    return Imported(
        folder=folder,
        name=fields["name"] or file.stem,
        architecture=fields["architecture"],
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        licence=fields["license"] or "not named in the file",
        remarks=tuple(remarks),
    )


def check_file(file: Path) -> None:
    """Raise ModelError if the file cannot be read or is not a GGUF."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(MAGIC))
    except OSError as error:
        raise ModelError(
            f"cannot read {file} ({error.strerror}). Give the path of a .gguf file."
        ) from error
    if start != MAGIC:
        raise ModelError(
            f"{file} is not a GGUF file, because its first bytes are not GGUF. Give a .gguf file."
        )


def read_fields(file: Path) -> dict[str, str]:
    """Read the fields `name`, `architecture`, `license` and `pre` (the tokenizer's pre-tokenizer).
    A missing field is "".

    Raises ModelError if the package `gguf` is not installed, or if the file is damaged or only one
    part of a split model. A model that scales rotary positions is an error as well, because
    transformers does not read the scaling from a GGUF.
    """
    try:
        import accelerate  # noqa: F401 - transformers loads GGUF files with it
        from gguf import GGUFReader
    except ImportError as error:
        raise ModelError(
            f"reading GGUF files needs two more packages: {install_hint('gguf')}"
        ) from error
    keys = {
        "name": "general.name",
        "architecture": "general.architecture",
        "license": "general.license",
    }
    keys["pre"] = "tokenizer.ggml.pre"
    try:
        reader = GGUFReader(file)
        wanted = {*keys.values(), "split.count"}
        values = {
            k: field.contents()
            for k, field in reader.fields.items()
            # `.rope.scal` matches `<architecture>.rope.scaling.*` and `.rope.scale_linear`.
            if k in wanted or ".rope.scal" in k
        }
        fields = {name: one_line(values.get(key, "")) for name, key in keys.items()}
        parts = int(values.get("split.count", 1))
        scaling = _scaling(reader, values, fields["architecture"])
    except Exception as error:  # a damaged file can raise errors of many types
        raise ModelError(
            f"{file} is damaged or truncated ({one_line(error)}). Download the file again."
        ) from error
    if parts > 1:
        raise ModelError(
            f"{file} is one of the {parts} parts of a split model. Merge the parts with: "
            "llama-gguf-split --merge FIRST_FILE WHOLE_FILE"
        )
    if scaling:
        raise ModelError(
            f"{file} scales rotary positions ({scaling}), but transformers does not read this scaling from a GGUF, so "
            "the logits would be wrong. Use the original weights (safetensors)."
        )
    return fields


def _scaling(reader: Any, values: dict[str, Any], architecture: str) -> str:
    """Describe how the model scales rotary positions, or "" if it does not. As in llama.cpp, a
    factor without a type means linear scaling."""
    if architecture == "gemma4":
        return ""  # transformers contains the factors, which are the same for every Gemma 4 model
    # Scaling factors per frequency are stored as tensors, not as fields.
    tensors = [
        tensor.name
        for tensor in reader.tensors
        if tensor.name.startswith(("rope_freqs.", "rope_factors_"))
    ]
    key = f"{architecture}.rope.scaling.type"
    kind = values.get(key, "linear")
    factor = values.get(
        f"{architecture}.rope.scaling.factor", values.get(f"{architecture}.rope.scale_linear", 1.0)
    )
    if tensors:
        return tensors[0]
    if kind == "none" or (kind == "linear" and factor in (0, 1)):
        return ""
    return f"{key}={kind}, factor {factor:g}"


def plain_model(file: Path) -> Any:
    """Load the model as ordinary float32 layers, without the GGUF settings that transformers adds.

    Raises ModelError if weights are missing. Errors of transformers are passed on.
    """
    source: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    causal_lm: Any = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, output_loading_info=True
    )
    loaded, info = causal_lm
    # A GGUF with only adapters or a part of the model loads without an error. The missing weights
    # are then random.
    if info["missing_keys"]:
        raise ModelError(
            f"{file} lacks the weights of {len(info['missing_keys'])} parameters, such as {min(info['missing_keys'])}. "
            "Use a GGUF of the whole model."
        )
    config = AutoConfig.from_pretrained(**source)
    # Both keys describe only the GGUF file, which the saved folder does not need.
    for name in ("quantization_config", "_name_or_path"):
        config.__dict__.pop(name, None)
    # On the meta device, the new model needs no memory. `assign=True` below replaces its weights by
    # the loaded ones.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict(), assign=True)
    # `assign` has made input and output embeddings separate parameters, so tie them again.
    model.tie_weights()
    model.generation_config = loaded.generation_config
    return model


def split_digits(tokenizer: Any) -> None:
    """Change the tokenizer, in place, so that it separates every digit before it applies GPT-2's
    rule."""
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def sha256(file: Path) -> str:
    """Return the SHA-256 checksum of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def card(file: Path, fields: dict[str, str]) -> str:
    """Return the text of the model folder's README.md. Its front matter has the licence in the
    field that the Hub reads."""
    licence = fields["license"]
    head = ["---", f"license: {licence}", "---", ""] if licence else []
    lines = [
        *head,
        f"# {fields['name'] or file.stem}",
        "",
        f"Made by `spa model import-gguf` from `{file.name}` (sha256 {sha256(file)}).",
        f"Architecture: {fields['architecture']}. Licence named in the GGUF: {licence or 'none'}.",
        "",
        "The weights are those of the GGUF, unpacked to float32. The weights keep the quantization error of the GGUF.",
    ]
    return "\n".join(lines) + "\n"

"""Choose the precision of a run on a CPU, once per run, from a table of CPU features.

The table follows measurements with a model of 135M parameters on one thread. With AMX, matrix
products in bfloat16 are 10 times as fast as in float32; with the bfloat16 dot products of AVX-512
(AMD Zen 4 and 5), 4 times. CPUs without either emulate bfloat16: on AVX2, a matrix product then
takes 5 to 60 times as long as in float32, so float32 replaces it. Small models (`build.is_tiny`)
use float32 everywhere, because matrix products are not their bottleneck.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

from spa.config.schema import Config
from spa.config.schema_models import Dtype
from spa.models.build import is_tiny

Feature = Literal["amx", "avx512_bf16", "none"]

PRECISION: dict[Feature, Dtype] = {"amx": "bfloat16", "avx512_bf16": "bfloat16", "none": "float32"}


def processor_feature() -> Feature:
    """Return the name of the fastest bfloat16 matrix instructions of this CPU; "none" if it has
    none."""
    for feature, question in (
        ("amx", "_is_amx_tile_supported"),
        ("avx512_bf16", "_is_avx512_bf16_supported"),
    ):
        # Private functions of PyTorch, which another version may lack.
        asked: Any = getattr(torch.cpu, question, None)
        if asked is not None and asked():
            return feature  # pyright: ignore[reportReturnType]
    return "none"


def on_cpu(cfg: Config) -> bool:
    """Return whether the run computes on a CPU."""
    return cfg.trainer.device == "cpu" or (
        cfg.trainer.device == "auto" and not torch.cuda.is_available()
    )


KEYS = (
    "actor_rollout_ref.model.dtype",
    "actor_rollout_ref.rollout.dtype",
    "critic.model.dtype",
    "sft.model.dtype",
)


def precision_of(
    cfg: Config, folders: Sequence[Path] = (), *, feature: Feature | None = None
) -> dict[str, Dtype]:
    """Resolve the precision of every key in `KEYS`. On a CPU, `auto` is replaced by the value in
    the first readable `config.yaml` of `folders`. That value may be `auto`, too, if an old run
    wrote it. Without a readable file, `auto` is replaced by the value from the table.

    Reading a saved `config.yaml` lets a run that moves to another CPU keep its precision. Explicit
    values are kept, except bfloat16 on a CPU that only emulates it, which counts as `auto`. If the
    trainer computes in float32, `auto` means float32 for the engine, too.
    """
    part = cfg.actor_rollout_ref
    asked: dict[str, Dtype] = {
        "actor_rollout_ref.model.dtype": part.model.dtype,
        "actor_rollout_ref.rollout.dtype": part.rollout.dtype,
        "critic.model.dtype": cfg.critic.model.dtype,
        "sft.model.dtype": cfg.sft.model.dtype,
    }
    if not on_cpu(cfg):
        return asked
    feature = feature or processor_feature()
    if feature == "none":
        asked = {key: "auto" if value == "bfloat16" else value for key, value in asked.items()}
    if "auto" not in asked.values():
        return asked
    kept = next((saved for folder in folders if (saved := _saved(folder))), {})
    tiny = is_tiny(cfg.model_path, code=part.model.trust_remote_code)
    best: Dtype = "float32" if tiny else PRECISION[feature]
    trained = asked[KEYS[0]] if asked[KEYS[0]] != "auto" else kept.get(KEYS[0], best)
    table: dict[str, Dtype] = dict.fromkeys(asked, trained)
    # A policy sampled in bfloat16 would differ from one trained in float32.
    table[KEYS[1]] = "float32" if trained == "float32" else best
    return {
        key: kept.get(key, table[key]) if value == "auto" else value for key, value in asked.items()
    }


def with_precision(cfg: Config, chosen: Mapping[str, Dtype]) -> Config:
    """Return `cfg` with the precisions that `precision_of` has chosen."""
    part = cfg.actor_rollout_ref
    model = replace(part.model, dtype=chosen[KEYS[0]])
    rollout = replace(part.rollout, dtype=chosen[KEYS[1]])
    return replace(
        cfg,
        actor_rollout_ref=replace(part, model=model, rollout=rollout),
        critic=replace(cfg.critic, model=replace(cfg.critic.model, dtype=chosen[KEYS[2]])),
        sft=replace(cfg.sft, model=replace(cfg.sft.model, dtype=chosen[KEYS[3]])),
    )


def _saved(folder: Path) -> dict[str, Dtype]:
    """Read the precisions in a stage's `config.yaml`; empty if it cannot be read."""
    try:
        # Read as plain YAML, since the file may come from a version with another schema.
        tree = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        return {key: reduce(lambda part, name: part[name], key.split("."), tree) for key in KEYS}
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return {}

"""Evaluation sets: fixed puzzles that training never uses, with fixed limits of turns and actions.

A set names its puzzles by seed and content hash. Training and validation exclude puzzles with the
same content (`spa.recipes.setup.validation_hashes`).
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from spa.errors import ConfigError, nearest

FOLDER = "eval_sets"
SAMPLES = 2
"""Number of sampled episodes per puzzle, at temperature 1. One more episode is greedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    """Puzzles of one environment, with the limits for playing them."""

    name: str
    tag: str
    env_type: str
    options: dict[str, Any]
    max_turn: int
    max_actions_per_turn: int
    max_actions_per_traj: int
    seeds: tuple[int, ...]
    puzzle_hashes: tuple[str, ...]  # hashes of `puzzle_text`, as in episodes

    @property
    def digest(self) -> str:
        """Return the SHA-256 hash of all fields of the set."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def overrides(self) -> list[str]:
        """Return the configuration overrides with which validation plays this set."""
        return [
            f"es_manager.val.env_configs.tags=[{self.tag}]",
            f"es_manager.val.env_configs.n_groups=[{len(self.seeds)}]",
            f"es_manager.val.env_groups={len(self.seeds)}",
            f"custom_envs.{self.tag}.max_actions_per_traj={self.max_actions_per_traj}",
            f"agent_proxy.max_turn={self.max_turn}",
            f"agent_proxy.max_actions_per_turn={self.max_actions_per_turn}",
        ]


def eval_set_names() -> tuple[str, ...]:
    """Return the names of the shipped sets, sorted."""
    return tuple(sorted(file.name.removesuffix(".json") for file in _files()))


@lru_cache
def eval_set(name: str) -> EvalSet:
    """Load a shipped set by name. Raises ConfigError if there is no such set (and suggests the
    nearest name), or if its file is damaged."""
    found = [file for file in _files() if file.name == f"{name}.json"]
    if not found:
        raise ConfigError(f"There is no evaluation set {name!r}; {nearest(name, eval_set_names())}")
    content = json.loads(found[0].read_text(encoding="utf-8"))
    digest = content.pop("sha256")
    lists = {key: tuple(content[key]) for key in ("seeds", "puzzle_hashes")}
    read = EvalSet(**{**content, **lists})
    if read.digest != digest:
        raise ConfigError(
            f"The file of the evaluation set {name} is damaged: its content has another hash than "
            "the file states. Install spa again"
        )
    return read


def to_json(made: EvalSet) -> str:
    """Format a set as the JSON text of its file, including the hash."""
    rows = {**asdict(made), "sha256": made.digest}
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in rows.items())
    return f"{{\n{lines}\n}}\n"


@lru_cache
def eval_set_hashes() -> frozenset[str]:
    """Return the content hashes of the puzzles in all shipped sets."""
    return frozenset(
        content for name in eval_set_names() for content in eval_set(name).puzzle_hashes
    )


def _files() -> Iterator[Any]:
    folder = resources.files("spa") / "assets" / FOLDER
    return (file for file in folder.iterdir() if file.name.endswith(".json"))

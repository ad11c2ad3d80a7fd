"""The protocol that every engine follows: prompts in, completions out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import nn

from spa.types import Completion, Prompt, SamplingParams


class Engine(Protocol):
    """An engine continues prompts. `generate` returns one completion per prompt, in the same
    order."""

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per prompt."""
        ...

    def load_weights(self, model: nn.Module | Path, *, version: int) -> None:
        """Use the weights of `model` (a module or a checkpoint folder) from now on, and drop all
        caches computed with the old weights. `version` is stored in later completions."""
        ...

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Drop the caches of finished episodes."""
        ...

    def close(self) -> None:
        """Release memory, processes and connections."""
        ...

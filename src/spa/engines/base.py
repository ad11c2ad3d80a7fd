"""The protocol that every engine follows: prompts in, completions out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torch import nn

from spa.types import Completion, Prompt, SamplingParams


class Engine(Protocol):
    """Continues prompts. `generate` returns as many completions as it got prompts, in the same
    order."""

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """One completion per prompt."""
        ...

    def load_weights(self, model: nn.Module | Path, *, version: int) -> None:
        """Use these weights from now on; everything cached under the old ones is dropped."""
        ...

    def forget(self, episode_ids: Sequence[str]) -> None:
        """These episodes are over; whatever is cached of them can go."""
        ...

    def close(self) -> None:
        """Give back memory, processes and connections."""
        ...

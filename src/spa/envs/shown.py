"""View of an environment that shows a given state text."""

from dataclasses import dataclass
from typing import Any

from spa.envs.base import StateText, TextEnv


@dataclass(frozen=True, slots=True)
class Shown:
    """Stand-in for `env` when prompts are rendered: it shows `text` as the state, and takes rules,
    symbols and actions from `env`."""

    env: TextEnv
    text: str

    def state_text(self, mode: StateText) -> str:
        """Return `text` for every mode."""
        return self.text

    def image(self) -> None:
        """Return None: the text is shown even if the environment has images."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

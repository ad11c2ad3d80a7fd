"""An environment that shows a given state text."""

from dataclasses import dataclass
from typing import Any

from spa.envs.base import StateText, TextEnv


@dataclass(frozen=True, slots=True)
class Shown:
    """The rules, symbols and actions of `env` for prompts, with `text` as its state."""

    env: TextEnv
    text: str

    def state_text(self, mode: StateText) -> str:
        """The given text."""
        return self.text

    def image(self) -> None:
        """Return None: the text is shown even if the environment has images."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

"""An environment's words around a state text that is given."""

from dataclasses import dataclass
from typing import Any

from spa.envs.base import StateText, TextEnv


@dataclass(frozen=True, slots=True)
class Shown:
    """Rules, symbols and actions of `env`, as prompts look at them; its state is `text`."""

    env: TextEnv
    text: str

    def state_text(self, mode: StateText) -> str:
        """The given text."""
        return self.text

    def image(self) -> None:
        """None: the text is shown, also where the environment has pictures."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

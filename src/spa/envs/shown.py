"""An environment's words around a state text that is given."""

from spa.envs.base import Action, StateText, TextEnv


class Shown(TextEnv):
    """Rules, symbols and actions of `env`; its state is `text`, which can be replaced. It cannot be
    played."""

    def __init__(self, env: TextEnv, text: str = "") -> None:
        self._env = env
        self.text = text

    def state_text(self, mode: StateText) -> str:
        """The given text."""
        return self.text

    def instruction(self, mode: StateText) -> str:
        """The environment's rules."""
        return self._env.instruction(mode)

    def legend(self) -> dict[str, str]:
        """The environment's symbols."""
        return self._env.legend()

    def action_names(self) -> tuple[str, ...]:
        """The environment's actions."""
        return self._env.action_names()

    def legal_actions(self) -> tuple[str, ...]:
        """What the environment allows."""
        return self._env.legal_actions()

    def to_action(self, text: str) -> Action | None:
        """As the environment reads it."""
        return self._env.to_action(text)

    def puzzle_text(self) -> str:
        """The given text."""
        return self.text

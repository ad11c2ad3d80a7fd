"""Base class of FrozenLake and Sokoban, which renders a board as a text grid, a sentence and an
image. Options can change symbols and labels."""

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from spa.envs.base import StateText, TextEnv, label_space
from spa.envs.options import choose_state_text, read_actions, read_symbols
from spa.envs.sprites import picture


class GridGame(TextEnv):
    """Base class of games on a grid."""

    metadata = {  # noqa: RUF012 (Gymnasium declares it this way)
        "render_modes": ["text", "text_with_coordinates", "rgb_array"],
        "render_fps": 4,
    }

    def __init__(
        self,
        name: str,
        symbols: Mapping[int, str],
        meanings: Mapping[int, str],
        actions: Mapping[int, str],
        *,
        grid_lookup: Mapping[int, str] | None,
        grid_vocab: Mapping[str, str] | None,
        action_lookup: Mapping[int, str] | None,
        render_mode: str,
        state_text: StateText | None,
    ) -> None:
        """`name` is the environment's name in error messages. `symbols`, `meanings` and `actions`
        are the original code's defaults by id. The other arguments are user options. `grid_lookup`,
        `grid_vocab` and `action_lookup` replace these defaults."""
        self.default_state_text = choose_state_text(
            name, state_text, render_mode, self.metadata["render_modes"]
        )
        self.render_mode = render_mode
        self._symbols, self._legend = read_symbols(name, grid_lookup, grid_vocab, symbols, meanings)
        # `_means`: the direction that each label means.
        self._labels, self._means = read_actions(name, action_lookup, actions)
        self.action_space = label_space(len(self._labels))

    @abstractmethod
    def _grid(self) -> str:
        """Return the board as a text grid."""

    @abstractmethod
    def _sentence(self) -> str:
        """Return the coordinate sentence."""

    @abstractmethod
    def _sprites(self) -> list[list[tuple[str, ...]]]:
        """Return the sprite names of every cell, row by row. Within a cell, they are ordered from
        bottom to top."""

    def state_text(self, mode: StateText) -> str:
        """Return the grid, the coordinate sentence, or both, as `mode` requires."""
        if mode == "grid":
            return self._grid()
        if mode == "coords":
            return self._sentence()
        return f"{self._grid()}\n{self._sentence()}"

    def action_names(self) -> tuple[str, ...]:
        """Return the action labels in the order of their ids."""
        return self._labels

    def legend(self) -> dict[str, str]:
        """Return the meaning of each symbol."""
        return dict(self._legend)

    def render(self) -> str | np.ndarray:  # type: ignore[override]
        """Return the state text of the render mode; for `rgb_array`, the result of `image`."""
        shown = self.image()
        return self.state_text(self.default_state_text) if shown is None else shown

    def image(self) -> np.ndarray | None:
        """Render the board as uint8 [16 * rows, 16 * cols, 3] if the render mode is `rgb_array`;
        return None otherwise."""
        return picture(self._sprites()) if self.render_mode == "rgb_array" else None

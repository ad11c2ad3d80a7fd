"""The documents on which the bundled model is pretrained. They teach the response formats, quoting
a state, and the positions of cells relative to each other.

They take the place of instruction tuning. The turns of a conversation are unrelated: each shows the
start of another random puzzle. The response quotes the state and "predicts" a corrupted copy of it.
Its actions follow random habits: fixed random tables (`HABITS`) from the cells in the text to
action weights, unrelated to the effects of the actions.

Other documents state the displacement between two cells. No document contains a transition of any
environment, and none reveals the effect of an action.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spa.envs.base import StateText, TextEnv
from spa.envs.registry import make_env
from spa.envs.shown import Shown
from spa.formats.registry import world_model_response
from spa.prompts.render import Prompter, PromptMode
from spa.types import Message

THOUGHTS = ("Let me try this.", "I will see what happens.", "This may work.")
_CELL = re.compile(r"\(\d,\d\)")
# Matches the player's cell in a coordinate sentence: the `(1,2)` of `Player (P) is at (1,2)`.
_PLAYER = re.compile(r"[Pp]layer \(.\) is at (\(\d,\d\))")
_AFTER_PLAYER = (" in a hole", " on the goal")
# Number of actions of a response that have their own tables. Later actions use the last table.
_HABIT_ACTIONS = 3
# Log-weights of actions, indexed by [position of the action in the response, observed (0) or
# predicted (1) cell, row, column, action].
HABITS = np.random.Generator(np.random.PCG64(2024)).normal(0.0, 1.0, (_HABIT_ACTIONS, 2, 10, 10, 4))


@dataclass(frozen=True, slots=True)
class Game:
    """A kind of puzzle from which states are sampled, with its probability."""

    env_type: str
    options: Mapping[str, object]
    state_text: StateText
    weight: float


# Weights add up to 1. Two thirds are coordinate sentences of 4x4 FrozenLake without slipping.
GAMES = (
    Game("frozen_lake", {"is_slippery": False}, "coords", 0.66),
    Game("frozen_lake", {"is_slippery": False}, "grid", 0.06),
    Game("frozen_lake", {"is_slippery": True}, "grid_and_coords", 0.04),
    Game("frozen_lake", {"is_slippery": False, "size": 6}, "coords", 0.04),
    Game("sokoban", {}, "coords", 0.08),
    Game("sokoban", {}, "grid_and_coords", 0.06),
    Game("sudoku", {}, "grid_and_coords", 0.06),
)


class Documents:
    """An endless stream of documents, sampled with one random generator."""

    def __init__(self, rng: np.random.Generator, *, displacement_share: float = 0.15) -> None:
        self.rng = rng
        self.displacement_share = displacement_share
        self.envs = [make_env(game.env_type, game.options) for game in GAMES]
        self.weights = np.cumsum([game.weight for game in GAMES]) / sum(
            game.weight for game in GAMES
        )

    def next(self) -> str | tuple[Message, ...]:
        """Sample the next document: a plain text about displacements, or a conversation."""
        if self.rng.random() < self.displacement_share:
            return self._displacements()
        kind = int(np.searchsorted(self.weights, self.rng.random()))
        mode: PromptMode = "add_worldmodel" if self.rng.random() < 0.65 else "base"
        return self._conversation(self.envs[kind], GAMES[kind].state_text, mode)

    def _conversation(
        self, env: TextEnv, state_text: StateText, mode: PromptMode
    ) -> tuple[Message, ...]:
        rng = self.rng
        # Limits and counts vary, so that the model reads them from the prompt instead of learning a
        # constant.
        limit = int(rng.choice((1, 2, 3, 3, 3, 4, 5, 5)))
        prompter = Prompter(
            mode=mode,
            state_text=state_text,
            max_turn=int(rng.choice((1, 3, 5, 5, 10))),
            max_actions_per_turn=limit,
            max_actions_per_traj=int(rng.choice((5, 10, 10, 20, 50))),
            placeholders="words",
        )
        shown: Any = Shown(env, self._state(env, state_text))
        messages = list(prompter.first_messages(shown))
        left = prompter.max_actions_per_traj
        # Grids need more tokens, so their conversations have fewer turns.
        turns = (1, 1, 2, 2, 3, 4, 5) if state_text == "coords" else (1, 1, 1, 2)
        for turn in range(1, int(rng.choice(turns)) + 1):
            count = limit if rng.random() < 0.5 else int(rng.integers(1, limit + 1))
            messages.append(
                {"role": "assistant", "content": self._response(env, prompter, shown.text, count)}
            )
            left = max(1, left - count)
            # Rewards are random, too, so no document connects an action with its reward.
            reward = float(rng.choice((0, 0, 0, 1, -0.1, -0.2, 0.9, -0.5)))
            shown = Shown(env, self._state(env, state_text))
            message = prompter.next_message(shown, turn=turn + 1, actions_left=left, reward=reward)
            messages.append(message)
        # Drop the last message, which is a prompt without a response.
        return tuple(messages[:-1])

    def _response(self, env: TextEnv, prompter: Prompter, state: str, count: int) -> str:
        # The legal actions come from another puzzle, so that not even they reveal anything about
        # the shown state.
        env.reset(seed=int(self.rng.integers(2**31)))
        predicted = None if prompter.mode == "base" else corrupted(state, self.rng)
        cells = [player_cell(text) for text in (state, predicted) if text is not None]
        answer = f" {prompter.action_sep} ".join(self._action(env, cells, i) for i in range(count))
        if predicted is None:
            return f"<think>{self.rng.choice(THOUGHTS)}</think><answer>{answer}</answer>"
        return world_model_response(state, "", predicted, answer)

    def _action(self, env: TextEnv, cells: Sequence[tuple[int, int] | None], position: int) -> str:
        """The response's action at `position`. If the player's cells are known and there are four
        actions, habits determine it, otherwise it is random."""
        names = env.action_names()
        # Actions may depend on the cells in the text, but never on the effects of actions.
        known = [cell for cell in cells if cell is not None]
        if len(known) < len(cells) or len(names) != HABITS.shape[-1]:
            return env.random_action(self.rng)
        tables = HABITS[min(position, _HABIT_ACTIONS - 1)]
        # A log-linear policy, which adds the weights of the observed and of the predicted cell.
        weights = np.exp(sum(tables[(i, *cell)] for i, cell in enumerate(known)))
        return names[int(self.rng.choice(len(names), p=weights / weights.sum()))]

    def _state(self, env: TextEnv, state_text: StateText) -> str:
        env.reset(seed=int(self.rng.integers(2**31)))
        state = env.state_text(state_text)
        if env.unwrapped.__class__.__name__ == "FrozenLake" and self.rng.random() < 0.1:
            # Add the words of terminal states at random, so that the model learns to copy them.
            state = f"{state[:-1]}{self.rng.choice(_AFTER_PLAYER)}."
        return state

    def _displacements(self) -> str:
        return "\n".join(self._displacement() for _ in range(8))

    def _displacement(self) -> str:
        size = 4 if self.rng.random() < 0.8 else int(self.rng.integers(5, 9))
        a = self.rng.integers(size, size=2)
        b = self.rng.integers(size, size=2)
        start = f"({a[0]},{a[1]})"
        end = f"({b[0]},{b[1]})"
        offset = f"{b[0] - a[0]:+d} rows, {b[1] - a[1]:+d} columns"
        return (
            f"From {start} to {end}: {offset}."
            if self.rng.random() < 0.5
            else f"From {start} by {offset}: {end}."
        )


def player_cell(state: str) -> tuple[int, int] | None:
    """The player's row and column in a coordinate sentence, or None if the sentence does not
    contain them."""
    match = _PLAYER.search(state)
    return None if match is None else (int(match.group(1)[1]), int(match.group(1)[3]))


def corrupted(state: str, rng: np.random.Generator) -> str:
    """Return the state with one random part replaced.

    A cell (usually the player's) becomes a random cell or one that the state names. In a state
    without cells, a character becomes another character of the state. With probability 0.2, the
    state is unchanged.
    """
    if rng.random() < 0.2:
        return state
    cells = list(_CELL.finditer(state))
    if cells:
        player = _PLAYER.search(state)
        first = next(
            (cell for cell in cells if player and cell.start() == player.start(1)), cells[0]
        )
        chosen = first if rng.random() < 0.8 else cells[int(rng.integers(len(cells)))]
        size = 1 + max(int(digit) for cell in cells for digit in re.findall(r"\d", cell.group()))
        row, column = rng.integers(max(size, 4), size=2)
        named = cells[int(rng.integers(len(cells)))].group()
        # A cell that the state already names (a hole, the goal) is as likely as a random one.
        new = named if rng.random() < 0.5 else f"({row},{column})"
        return state[: chosen.start()] + new + state[chosen.end() :]
    # A grid contains no coordinates, so replace one of its characters by another.
    places = [i for i, character in enumerate(state) if not character.isspace()]
    at = places[int(rng.integers(len(places)))]
    return state[:at] + state[places[int(rng.integers(len(places)))]] + state[at + 1 :]


def prompt_texts() -> tuple[list[str], Sequence[str]]:
    """Return prompts of every game in every mode, and a list of state texts. `fixed_phrases` cuts
    the state texts out of the prompts, and the remaining phrases become tokens."""
    texts = []
    states = []
    for game in GAMES:
        env = make_env(game.env_type, game.options)
        for seed in range(200):
            env.reset(seed=seed)
            states.append(env.state_text(game.state_text))
        for mode in ("base", "add_worldmodel"):
            for actions in (1, 3):
                prompter = Prompter(
                    mode=mode,
                    state_text=game.state_text,
                    max_actions_per_turn=actions,
                    max_turn=actions,
                    placeholders="words",
                )
                texts += [message["content"] for message in prompter.first_messages(env)]
                texts.append(
                    prompter.next_message(env, turn=2, actions_left=3, reward=0.0)["content"]
                )
    return texts, states

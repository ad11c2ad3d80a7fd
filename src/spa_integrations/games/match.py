"""A match of a TextArena game against an opponent that moves at random. It has its own random
state, and tries moves on a copy first."""

import copy
import re
from collections.abc import Mapping
from typing import Any

from spa.seeds import stream, stream_seed
from spa_integrations.games.randomness import OwnRandomness
from spa_integrations.games.text import content, similar

TRIES = 20
"""Maximum number of moves that a random player samples to find a valid one."""
LARGE = 500
"""Containers with more entries are assumed to be constant word lists, which copies of a game
share."""


class Match:
    """A running game, without TextArena's wrappers. The agent is player 0. `over` is True once the
    match has ended. A match also ends if the opponent finds no valid move."""

    def __init__(
        self, library: Any, task: str, options: Mapping[str, Any], players: int, seed: int
    ) -> None:
        self.own = OwnRandomness(stream_seed(seed, "textarena/puzzle"))
        self.over = False
        with self.own:
            self.game = library.make(task, **options)
            # Wrappers merge observations into one text, but the separate messages are needed here.
            while isinstance(self.game, library.Wrapper):
                self.game = self.game.env
            self.game.reset(num_players=players, seed=seed % 2**31)
        # `tried` handles invalid moves, so TextArena must not end the game because of them.
        self.game.state.error_allowance = 10**9
        self.prompt, self.chance = self.told("PROMPT"), stream(seed, "textarena/opponent")

    def puzzle(self) -> str:
        """Return the prompt and the full state of the game, including hidden parts, as text."""
        return f"{self.prompt}\n{content(self.game.state.game_state)}"

    def renew_noise(self, noise: int) -> None:
        """Sample all later random outcomes and moves of the opponent from the streams of
        `noise`."""
        self.own, self.chance = (
            OwnRandomness(stream_seed(noise, "textarena/noise")),
            stream(noise, "textarena/opponent"),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Match":
        # Large collections are taken to be word lists that never change, so copies share them.
        # `deepcopy` does not copy an object that is in `memo`.
        for value in vars(self.game).values():
            if isinstance(value, list | set | dict) and len(value) > LARGE:
                memo[id(value)] = value
        twin = copy.copy(self)
        twin.game, twin.own, twin.chance = (
            copy.deepcopy(v, memo) for v in (self.game, self.own, self.chance)
        )
        return twin

    def told(self, *kinds: str, since: int = 0) -> str:
        """Return the messages to player 0 that are of these kinds, from index `since` on."""
        messages = self.game.state.observations[0][since:]
        return "\n".join(str(text) for _, text, kind in messages if kind_name(kind) in kinds)

    def tried(self, move: str) -> "Match | None":
        """Make a move of the current player on a copy of the match, and return the copy, or None if
        the move is not valid."""
        trial = copy.deepcopy(self)
        state = trial.game.state
        # A move changes the current player, so the mover is stored first.
        mover = trial.game.state.current_player_id
        try:
            with trial.own:
                trial.game.step(move)
        except Exception:  # noqa: BLE001 - a move that makes the game raise is not valid
            return None
        # After an invalid move, TextArena either counts an error or ends the game with a note about
        # the mover.
        if state.error_count or state.game_info[mover].get("invalid_move"):
            return None
        trial.over = bool(state.done)
        return trial

    def attempt(self, move: str) -> bool:
        """Make a move of the current player, and return whether it was valid. An invalid move
        leaves the match unchanged."""
        trial = self.tried(move)
        if trial is None:
            return False
        self.game = trial.game
        self.own = trial.own
        self.over = trial.over
        return True

    def let_opponent_move(self) -> None:
        """Let the opponent make random valid moves until it is the agent's turn."""
        while not self.over and self.game.state.current_player_id != 0:
            # If none of TRIES moves is valid, the match ends. Otherwise the loop might never end.
            self.over = (
                not any(self.attempt(self.candidate(self.chance)) for _ in range(TRIES))
                or self.over
            )

    def listed(self) -> list[str]:
        """Return the legal moves of the current player from the newest message that lists them.
        Empty if no message does."""
        # Newest message first: lists in earlier messages are out of date.
        for _, text, _ in reversed(self.game.state.observations[self.game.state.current_player_id]):
            # Some boards list the moves, such as `Available Moves: [0], [4]`; each bracket is one
            # move.
            if match := re.search(
                r"(?i)(?:available|valid|legal|possible) (?:moves|actions)[^\[\n]*(\[.*)", str(text)
            ):
                return list(dict.fromkeys(re.findall(r"\[[^\[\]\n]{1,40}\]", match[1])))
        return []

    def candidate(self, rng: Any) -> str:
        """Sample a move that may be invalid: one of the listed moves, or else an example from the
        prompt with other numbers and letters."""
        moves = self.listed()
        if moves:
            return moves[int(rng.integers(len(moves)))]
        return similar(self.examples(), rng)

    def examples(self) -> list[str]:
        """Return the texts in square brackets in the prompt, which show how moves are written."""
        return list(dict.fromkeys(re.findall(r"\[[^\[\]\n|]{1,40}\]", self.prompt))) or ["[1]"]


def kind_name(kind: Any) -> str:
    """Return the name of a message's kind. A plain string, which some games use instead of
    TextArena's enumeration, counts as "GAME_MESSAGE"."""
    return getattr(kind, "name", "GAME_MESSAGE")

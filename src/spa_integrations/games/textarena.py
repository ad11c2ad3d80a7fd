"""Games of TextArena, such as `textarena:TicTacToe-v0`. In two-player games, the opponent moves at
random.

Source: https://github.com/LeonGuertler/TextArena . Moves are tried on a copy first, so an invalid
move changes nothing.
"""

from typing import Any

from spa.envs.base import Action, StateText, TextEnv
from spa.envs.options import require_choice, reset_seeds
from spa.envs.spaces import text_space
from spa.errors import ConfigError
from spa_integrations.games import load_package
from spa_integrations.games.match import TRIES, Match, kind_name
from spa_integrations.games.text import ANSWER_LIMIT, clean, content, require_task


class TextArena(TextEnv):
    """A game of TextArena. Further options are passed to `textarena.make`.

    `know` selects what a world model should predict: the visible part of a state (`shown`), or the
    full state with its hidden parts (`game_state`).
    """

    changes = ("match",)

    def __init__(self, task: str, *, know: str = "shown", **options: Any) -> None:
        library = load_package("textarena")
        require_task("textarena", task, self.tasks())
        self.task = task
        self.know = require_choice(f"textarena:{task}", "know", know, ("shown", "game_state"))
        problems = []
        # The registry does not contain the number of players, so both numbers are tried.
        for players in (1, 2):
            self.how = (library, task, options, players)
            try:
                self.match = Match(*self.how, seed=0)
                break
            except Exception as error:  # noqa: BLE001 - a game may raise any exception
                problems.append(f"{type(error).__name__}: {str(error).strip()[:200]}")
        else:
            why = "; ".join(dict.fromkeys(problems))
            raise ConfigError(
                f"env_type 'textarena:{task}' does not start with one or two players ({why}). Choose another game."
            )
        # If three seeds give the same puzzle, the game is assumed to have a single start state.
        self.finite_puzzles = len({Match(*self.how, seed=seed).puzzle() for seed in range(3)}) == 1
        self.observation_space, self.action_space = text_space(), text_space(ANSWER_LIMIT)

    @classmethod
    def tasks(cls) -> list[str]:
        """Return the names of the games. The variants `-train` and `-raw` are left out, because
        they are the same games in other wrappers."""
        registry = load_package("textarena", "textarena.envs.registration").ENV_REGISTRY
        return [name for name in registry if not name.endswith(("-train", "-raw"))]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the game that `seed` generates. Later random outcomes and moves of the opponent
        come from the noise seed."""
        puzzle, noise = reset_seeds(self, seed, options)
        self.match = Match(*self.how, seed=puzzle)
        self.puzzle = self.match.puzzle()
        self.since = 0
        # The opponent's first moves belong to the puzzle, so they precede `renew_noise`.
        self.match.let_opponent_move()
        self.match.renew_noise(noise)
        return self.state_text("grid"), {}

    def renew_noise(self, noise_seed: int) -> None:
        """Sample all later random outcomes and moves of the opponent from the streams of
        `noise_seed`."""
        self.match.renew_noise(noise_seed)

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make a move, then let the opponent move. TextArena gives a reward only when the game
        ends. A reward of at least 1 is a success."""
        before = self.state_text("grid")
        seen = len(self.match.game.state.observations[0])
        reward = 0.0
        move = self.to_action(action) if isinstance(action, str) and not self.match.over else None
        valid = move is not None and self.match.attempt(str(move))
        if valid:
            self.since = seen
            self.match.let_opponent_move()
            reward = float((self.match.game.state.rewards or {}).get(0, 0.0))
        won = valid and self.match.over and reward >= 1
        info = {
            "action_is_valid": valid,
            "action_is_effective": self.state_text("grid") != before,
            "success": won,
        }
        return self.state_text("grid"), reward, self.match.over, False, info

    def state_text(self, mode: StateText) -> str:
        """The last board, and the messages since the last move; for games without a board, the
        whole transcript."""
        boards = [
            text
            for _, text, kind in self.match.game.state.observations[0]
            if kind_name(kind) == "GAME_BOARD"
        ]
        kinds = (
            ("GAME_MESSAGE",)
            if boards
            else ("GAME_MESSAGE", "GAME_ACTION_DESCRIPTION", "PLAYER_ACTION")
        )
        said = self.match.told(*kinds, since=self.since if boards else 0)
        ending = (
            f"Game over. {self.match.game.state.game_info[0].get('reason') or ''}"
            if self.match.over
            else ""
        )
        return clean("\n".join(filter(None, [*boards[-1:], said, ending])))

    def world_state_text(self, mode: StateText) -> str:
        """The visible state or the full state of the game, depending on `know`."""
        return (
            self.state_text(mode)
            if self.know == "shown"
            else clean(content(self.match.game.state.game_state))
        )

    def to_action(self, text: str) -> Action | None:
        """The move in square brackets, or None if it is empty, longer than 1,000 characters, or
        contains unprintable characters."""
        text = text.strip()
        if not text or len(text) > ANSWER_LIMIT or not text.isprintable():
            return None
        # TextArena reads moves in square brackets, so missing brackets are added.
        return text if "[" in text else f"[{text}]"

    def legal_actions(self) -> tuple[str, ...]:
        """The moves that the game lists and accepts. Empty if it lists none."""
        return (
            ()
            if self.match.over
            else tuple(move for move in self.match.listed() if self.match.tried(move))
        )

    def random_action(self, rng: Any) -> str:
        """Sample moves until one is valid; after TRIES attempts, return an untested one."""
        move = self.match.candidate(rng)
        for _ in range(TRIES):
            if self.match.over or self.match.tried(move):
                break
            move = self.match.candidate(rng)
        return move

    def example_actions(self) -> tuple[str, ...]:
        """Up to two legal moves, or examples from the prompt if the game lists no moves."""
        return (self.legal_actions() or tuple(self.match.examples()))[:2]

    def instruction(self, mode: StateText) -> str:
        """The game's own prompt."""
        return clean(self.match.prompt)

    def puzzle_text(self) -> str:
        """The prompt and the full state at the start, hidden parts included."""
        return self.puzzle

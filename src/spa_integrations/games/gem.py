"""GEM's language games: `gem:game:Sokoban-v0-easy`. The state is the board, or the whole transcript
for games without a board. Source: https://github.com/axon-rl/gem ."""

import copy
import re
from typing import Any

from spa.envs.base import Action, StateText, TextEnv
from spa.envs.options import reset_seeds
from spa.envs.spaces import text_space
from spa.errors import ConfigError
from spa.seeds import stream_seed
from spa_integrations.games import load_package
from spa_integrations.games.randomness import OwnRandomness
from spa_integrations.games.text import ANSWER_LIMIT, clean, content, require_task, similar

TRIES = 20  # maximum number of random moves to sample until GEM can read one
MISREAD = -0.1  # GEM's reward for an action that it cannot read, which also ends the game
# `\boxed{Up}` -> `Up`; a move contains no braces.
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
# Lines around the board that introduce it or ask for a move, such as `Enter your guess`.
_ASKS = re.compile(r"(?m)^(?:Enter your|Here is the current|Current board).*$\n?")


class Gem(TextEnv):
    """A game of GEM. Further options are passed to `gem.make`. Actions are written without the
    `\\boxed{}` that GEM expects."""

    # `TextEnv.clone` copies these attributes. All others are never changed in place, so clones can
    # share them.
    changes = ("game", "own", "said")

    def __init__(self, task: str, **options: Any) -> None:
        library = load_package("gem")
        require_task("gem", task, self.tasks())
        # The Tower of Hanoi has a single start state.
        self.task, self.own, self.finite_puzzles = task, OwnRandomness(0), "TowerofHanoi" in task
        try:
            # GEM's games sample from the global generators, so even the constructor runs in the
            # context of the game's own random state.
            with self.own:
                self.game: Any = library.make(task, **options)
        except Exception as error:
            why = repr(error)
            if isinstance(error, LookupError):
                why = "the task needs the word lists of NLTK; use nltk.download (docs/bridges.md)."
            raise ConfigError(f"env_type 'gem:{task}': {why}") from error
        self.observation_space, self.action_space = text_space(), text_space(ANSWER_LIMIT)

    @classmethod
    def tasks(cls) -> list[str]:
        """Names of GEM's games. Its question datasets are left out, because they must be downloaded
        or belong to Reasoning Gym, which has its own integration."""
        load_package("gem", "gem.envs")
        return [
            name
            for name in load_package("gem", "gem.envs.registration").ENV_REGISTRY
            if name.startswith("game:")
        ]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the puzzle that `seed` generates. Random outcomes in the game come from the noise
        seed."""
        puzzle, noise = reset_seeds(self, seed, options)
        self.own = OwnRandomness(stream_seed(puzzle, "gem/puzzle"))
        with self.own:
            self.prompt, info = self.game.reset(seed=stream_seed(puzzle, "gem/puzzle") % 2**31)
        # A separate stream, so that a puzzle can be played with different random outcomes.
        self.renew_noise(noise)
        self.over, self.said, self.board = False, [], _board(info)
        # The whole state of the game, so that puzzles with the same prompt have different hashes.
        self.puzzle = f"{self.task}\n{self.prompt}\n{content(self.game)}"
        return self.state_text("grid"), {}

    def renew_noise(self, noise_seed: int) -> None:
        """Sample all later random outcomes from the stream of `noise_seed`."""
        self.own = OwnRandomness(stream_seed(noise_seed, "gem/noise"))

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make a move. A move that GEM cannot read, or one after the end of the game, changes
        nothing."""
        move = self.to_action(action) if isinstance(action, str) and not self.over else None
        tried = None if move is None else self._tried(str(move))
        before = self.state_text("grid")
        reward = 0.0
        ended = self.over
        cut = False
        said = ""
        if tried is not None:
            self.game, self.own, (said, reward, ended, cut, info) = tried
            self.over, self.board, self.said = (
                bool(ended or cut),
                _board(info),
                [*self.said, clean(said)],
            )
        info = {"action_is_valid": tried is not None, "success": said.startswith("Congratulations")}
        info["action_is_effective"] = self.state_text("grid") != before
        return self.state_text("grid"), float(reward), bool(ended), bool(cut), info

    def _tried(self, move: str) -> tuple[Any, OwnRandomness, tuple[Any, ...]] | None:
        """Make a move on a copy of the game. Returns the copy, its random state and GEM's result,
        or None if GEM cannot read the move."""
        # If GEM cannot read a move, it ends the game. Moves are tried on a copy, so that the
        # original game can continue.
        game = copy.deepcopy(self.game)
        own = copy.deepcopy(self.own)
        try:
            with own:
                answer = game.step(f"\\boxed{{{move}}}")
        except Exception:  # noqa: BLE001 - a move that makes the game raise is not valid
            return None
        # If GEM cannot read a move, it ends the game with exactly this reward.
        return None if answer[2] and answer[1] == MISREAD else (game, own, answer)

    def state_text(self, mode: StateText) -> str:
        """The board and the outcome, or the whole transcript for games without a board. The text is
        the same in every mode."""
        end = self.said[-1:] if self.over else []
        lines = [self.board, *end] if self.board else self.said or ["Nothing was guessed yet."]
        return clean("\n".join(lines))

    def to_action(self, text: str) -> Action | None:
        """The move without `\\boxed{}`, or None if it is empty, longer than 1,000 characters, or
        contains braces, backslashes or unprintable characters."""
        text = (_BOXED.search(text) or [text, text])[1].strip() if len(text) <= ANSWER_LIMIT else ""
        # Braces and backslashes would close or nest the \boxed{} around the move.
        return text if text and text.isprintable() and not set(text) & set("{}\\") else None

    def random_action(self, rng: Any) -> str:
        """Sample a move that the game can read. Moves come from GEM's own sampler, or imitate the
        prompt's examples."""
        # After the end of the game, any move is returned, because it is not played.
        sampled = (self._sample(rng) for _ in range(TRIES))
        return next((move for move in sampled if self.over or self._tried(move)), self._sample(rng))

    def _sample(self, rng: Any) -> str:
        try:
            # GEM samples from the global generators, which are seeded from `rng` here.
            with OwnRandomness(int(rng.integers(2**31))):
                return str(self.to_action(self.game.sample_random_action()))
        except NotImplementedError:
            return similar(_BOXED.findall(self.prompt) or ["1 1"], rng)

    def example_actions(self) -> tuple[str, ...]:
        """Up to two moves that the prompt shows as examples."""
        shown = (
            text for text in _BOXED.findall(self.prompt) if self.to_action(text) and "." not in text
        )
        return tuple(dict.fromkeys(shown))[:2] or ("1",)

    def instruction(self, mode: StateText) -> str:
        """GEM's own prompt, with a note that moves are written without `\\boxed{}`."""
        return f"{clean(self.prompt)}\nHere actions are written without \\boxed{{}}."

    def puzzle_text(self) -> str:
        """The prompt, and the whole state of the game at the start."""
        return self.puzzle


def _board(info: dict[str, Any]) -> str:
    """The board in GEM's suffix. Empty if the suffix has none."""
    return _ASKS.sub("", str(info.get("suffix") or "")).strip("\n")

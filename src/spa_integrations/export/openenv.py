"""OpenEnv server for our games, which `spa env serve TAG` starts on this machine.

Source: https://github.com/meta-pytorch/OpenEnv (0.10). An action is the text of a game action
(`Right`); an observation has the state and its legal actions.
"""

from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State
from openenv.core.env_server.http_server import create_fastapi_app
from pydantic import Field

from spa.config.load import load_config
from spa.envs.base import StateText, TextEnv
from spa.envs.limits import checked_step
from spa_integrations.export.chat import make_game

SESSIONS = 64
"""Maximum number of games at the same time; each connection has its own game."""


class GameAction(Action):
    """One action of the game, as text."""

    action: str = Field(
        max_length=10_000, description="an action of the game, for example one of legal_actions"
    )


class GameObservation(Observation):
    """The player's observation. `rules` is filled only after a reset."""

    state: str = Field(description="the state, rendered as a string")
    legal_actions: list[str] = Field(
        default_factory=list,
        description="legal actions in this state; empty if the environment does not list actions",
    )
    rules: str = ""
    valid: bool = True
    success: bool = False


class GameState(State):
    """The current episode: the seed of its puzzle, and the sum of rewards so far."""

    seed: int | None = None
    score: float = 0.0


class GameServer(Environment[GameAction, GameObservation, GameState]):
    """Environment that plays one game. The OpenEnv server creates one for each connection."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: TextEnv, mode: StateText) -> None:
        super().__init__()
        # `over` is True until the first reset, so that a step before it is refused.
        self.env, self.now, self.over = env, GameState(), True
        self.mode: StateText = mode

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        noise_seed: int | None = None,
        **kwargs: Any,
    ) -> GameObservation:
        """Start the puzzle of `seed`, or of a random seed if it is None. `noise_seed` is the seed
        of random outcomes in the game."""
        self.env.reset(seed=seed, options={} if noise_seed is None else {"noise_seed": noise_seed})
        self.now = GameState(episode_id=episode_id, step_count=0, seed=seed)
        self.over = False
        return self._seen(rules=self.env.instruction(self.mode))

    def step(
        self, action: GameAction, timeout_s: float | None = None, **kwargs: Any
    ) -> GameObservation:
        """Take an action; an unknown action changes nothing. Raises ValueError before the first
        reset and after the end of an episode."""
        if self.over:
            raise ValueError("the episode is over or has not started. Call `reset` first.")
        known = self.env.to_action(action.action)
        reward = 0.0
        info = {"action_is_valid": False, "success": False}
        if known is not None:
            reward, self.over, info = checked_step(self.env.step(known))
        # A text that is not an action still counts as a step.
        self.now.step_count += 1
        self.now.score += reward
        return self._seen(
            reward=reward,
            done=self.over,
            valid=bool(info["action_is_valid"]),
            success=bool(info["success"]),
        )

    def _seen(self, **told: Any) -> GameObservation:
        return GameObservation(
            state=self.env.state_text(self.mode),
            legal_actions=list(self.env.legal_actions()),
            **told,
        )

    @property
    def state(self) -> GameState:
        """Seed, score and steps of the game."""
        return self.now


def application(tag: str, config: str = "base") -> Any:
    """Build the ASGI application that serves the game of an environment tag. Raises ConfigError if
    there is no such tag, or if its game has several players."""
    cfg = load_config(config)
    make_game(cfg, tag)  # raises ConfigError now, not when the first client connects
    return create_fastapi_app(
        # Each connection has its own game, because two clients must not play the same one.
        lambda: GameServer(make_game(cfg, tag), cfg.state_text),
        GameAction,
        GameObservation,
        max_concurrent_envs=SESSIONS,
        env_name=tag,
        state_cls=GameState,
    )

"""Players that ask the environment: its solver, and players who share the turns or the episodes."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import nn

from spa.engines.factory import PlayingEngine
from spa.engines.scripted import ScriptedEngine, formatted
from spa.envs.base import TextEnv
from spa.errors import ConfigError
from spa.prompts.template import ChatTemplate
from spa.seeds import stream
from spa.types import Completion, Prompt, SamplingParams

FAR = 64
"""Actions ahead in which a solver is asked for a way: on slippery ice there is none within the first few."""


def require_solver(env: TextEnv, tag: str) -> None:
    """Raises ConfigError if the environment, after `reset`, has no expert actions to offer."""
    if not env.expert_actions(FAR):
        raise ConfigError(
            f"the environment {tag} has no solver, so there is no expert to play it; use the random policy or a model"
        )


def expert_engine(template: ChatTemplate | None = None, *, max_actions: int) -> ScriptedEngine:
    """Best play by the environment's own solver (`TextEnv.expert_actions`), in the format that the prompt asks for.

    Where chance decides, the solver gives one action at a time, so that the number of turns bounds what it reaches.
    From a state without a way to the goal it takes a uniformly random action.
    """

    def reply(prompt: Prompt) -> str:
        actions = prompt.context.expert_actions(max_actions)
        if not actions:
            actions = (prompt.context.random_action(np.random.Generator(np.random.PCG64(prompt.seed))),)
        return formatted(prompt, f" {prompt.action_sep} ".join(actions))

    return ScriptedEngine(reply, template)


class MixedEngine:
    """Several players; `choose` gives the place in `players` of the one who answers a prompt."""

    def __init__(self, players: Sequence[PlayingEngine], choose: Callable[[Prompt], int]) -> None:
        self.players, self.choose = players, choose
        self.template = players[0].template

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """One completion per prompt, in order."""
        chosen = [self.choose(prompt) for prompt in prompts]
        out: dict[int, Completion] = {}
        for place, engine in enumerate(self.players):
            rows = [row for row, player in enumerate(chosen) if player == place]
            if rows:
                out |= dict(zip(rows, engine.generate([prompts[row] for row in rows], sampling), strict=True))
        return [out[row] for row in range(len(prompts))]

    def load_weights(self, model: nn.Module | Path, *, version: int) -> None:
        """New weights for all."""
        for player in self.players:
            player.load_weights(model, version=version)

    def forget(self, episode_ids: Sequence[str]) -> None:
        """These episodes are over."""
        for player in self.players:
            player.forget(episode_ids)

    def close(self) -> None:
        """Close all."""
        for player in self.players:
            player.close()


def with_strays(player: PlayingEngine, other: PlayingEngine, *, epsilon: float) -> MixedEngine:
    """`player`, who leaves each turn to `other` with probability `epsilon`, drawn from the turn's own stream."""
    return MixedEngine((player, other), lambda prompt: int(stream(prompt.seed, "epsilon").random() < epsilon))

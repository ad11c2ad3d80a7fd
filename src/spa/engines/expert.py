"""Players that ask the environment: its solver, and any player with a share of random turns."""

from collections.abc import Sequence
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


def require_solver(env: TextEnv, tag: str) -> None:
    """Raises ConfigError if the environment, after `reset`, has no expert actions to offer."""
    if not env.expert_actions(1):
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
    """A player that leaves each turn to another one with probability `epsilon`, drawn from the turn's own stream."""

    def __init__(self, player: PlayingEngine, other: PlayingEngine, *, epsilon: float) -> None:
        self.player, self.other, self.epsilon = player, other, epsilon
        self.template = player.template

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """One completion per prompt, in order."""
        strays = [stream(prompt.seed, "epsilon").random() < self.epsilon for prompt in prompts]
        out: dict[int, Completion] = {}
        for engine, wanted in ((self.player, False), (self.other, True)):
            rows = [row for row, stray in enumerate(strays) if stray is wanted]
            if rows:
                out |= dict(zip(rows, engine.generate([prompts[row] for row in rows], sampling), strict=True))
        return [out[row] for row in range(len(prompts))]

    def load_weights(self, model: nn.Module | Path, *, version: int) -> None:
        """New weights for both."""
        self.player.load_weights(model, version=version)
        self.other.load_weights(model, version=version)

    def forget(self, episode_ids: Sequence[str]) -> None:
        """These episodes are over."""
        self.player.forget(episode_ids)
        self.other.forget(episode_ids)

    def close(self) -> None:
        """Close both."""
        self.player.close()
        self.other.close()

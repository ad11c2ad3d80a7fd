"""The environment's own solver as a policy."""

import numpy as np

from spa.envs.base import TextEnv
from spa.errors import ConfigError
from spa.policies.scripted import ScriptedEngine, formatted
from spa.prompts.template import ChatTemplate
from spa.types import Prompt

FAR = 64
"""Actions ahead in which a solver is asked for a way: on slippery ice there is none within the
first few."""


def require_solver(env: TextEnv, tag: str) -> None:
    """Raises ConfigError if the environment, after `reset`, has no expert actions to offer."""
    if not env.expert_actions(FAR):
        raise ConfigError(
            f"generate.policy=expert needs a solver, which the environment {tag} does not "
            "have; use the random policy or a model"
        )


def expert_engine(template: ChatTemplate | None = None, *, max_actions: int) -> ScriptedEngine:
    """Best play by the environment's own solver (`TextEnv.expert_actions`), in the format that the
    prompt asks for.

    Where chance decides, the solver gives one action at a time, so that the number of turns bounds
    what it reaches. From a state without a way to the goal it takes a uniformly random action.
    """

    def response(prompt: Prompt) -> str:
        env = prompt.context
        actions = env.expert_actions(max(FAR, max_actions))
        # Where chance decides, which action is best depends on how many are left.
        if len(actions) == 1:
            left = [n for n in (prompt.turns_left, prompt.actions_left) if n is not None]
            actions = env.expert_actions(min(left, default=FAR)) or actions
        actions = actions[: min(max_actions, prompt.max_actions or max_actions)]
        if not actions:
            # Sampled from the prompt's seed, as a model's response would be.
            actions = (
                prompt.context.random_action(np.random.Generator(np.random.PCG64(prompt.seed))),
            )
        return formatted(prompt, f" {prompt.action_sep} ".join(actions))

    return ScriptedEngine(response, template)

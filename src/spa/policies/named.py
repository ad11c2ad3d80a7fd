"""Registry of policies without a model, for self-play and evaluation: random play, the
environment's own solver, and policies of other packages."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from spa.envs.base import TextEnv
from spa.errors import ConfigError
from spa.plugins import load_plugin, plugins
from spa.policies.scripted import ScriptedEngine, formatted, random_engine
from spa.prompts.template import ChatTemplate
from spa.types import Prompt

FAR = 64
"""Number of actions that a solver may plan. It is large, because on slippery ice a path of few
actions may not reach the goal."""


def require_solver(env: TextEnv, tag: str) -> None:
    """Raise ConfigError if the environment, which has been reset, has no expert actions."""
    if not env.expert_actions(FAR):
        raise ConfigError(
            f"generate.policy=expert needs a solver, which the environment {tag} does not "
            "have; use the random policy or a model"
        )


def expert_engine(template: ChatTemplate | None = None, *, max_actions: int) -> ScriptedEngine:
    """Return an engine that plays the actions of the environment's own solver
    (`TextEnv.expert_actions`), in the format that the prompt asks for.

    In a game of chance, the solver returns one action at a time, so each turn has one action. From
    a state without a path to the goal, the engine plays a uniformly random action.
    """

    def response(prompt: Prompt) -> str:
        env = prompt.context
        actions = env.expert_actions(max(FAR, max_actions))
        # In a game of chance, the best action depends on how many actions are left.
        if len(actions) == 1:
            left = [n for n in (prompt.turns_left, prompt.actions_left) if n is not None]
            actions = env.expert_actions(min(left, default=FAR)) or actions
        actions = actions[: min(max_actions, prompt.max_actions or max_actions)]
        if not actions:
            # Use the prompt's seed, from which a model's response would be sampled, too.
            actions = (
                prompt.context.random_action(np.random.Generator(np.random.PCG64(prompt.seed))),
            )
        return formatted(prompt, f" {prompt.action_sep} ".join(actions))

    return ScriptedEngine(response, template)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy without a model.

    Attributes:
        make: builds the engine. Arguments: a chat template (None: text only), and the largest
            number of actions per turn and per episode.
        require: raises ConfigError if the policy cannot play an environment. Arguments: the
            environment after `reset`, and its tag.
        tried: number of actions that the policy tries in copies of each puzzle before playing it.
    """

    make: Callable[[ChatTemplate | None, int, int], ScriptedEngine]
    require: Callable[[TextEnv, str], None] | None = None
    tried: int = 0


POLICIES: dict[str, Policy] = {
    "random": Policy(make=lambda template, turn, _: random_engine(template, max_actions=turn)),
    "expert": Policy(
        make=lambda template, turn, _: expert_engine(template, max_actions=turn),
        require=require_solver,
    ),
}


def policy_names() -> tuple[str, ...]:
    """Return the names of all policies without a model."""
    # Built-in policies come first: a plugin of the same name does not replace one.
    return tuple(dict.fromkeys((*POLICIES, *plugins("policies"))))


def policy_named(name: str) -> Policy:
    """Return the policy with this name. Raises ConfigError if another package's policy cannot be
    imported."""
    return POLICIES[name] if name in POLICIES else load_plugin("policies", name)

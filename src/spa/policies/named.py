"""Policies that self-play and evaluations know by name: ours, such as the environment's own solver, and
those of other packages.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy without a model.

    make: the engine that plays in the tokens of a chat template (None: text alone), with so many
    actions per turn and per episode at most. require: raises ConfigError for an environment, after
    `reset`, that it cannot play, by its tag. tried: actions that it takes in copies of each puzzle
    before it plays it.
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
    """The names of all policies without a model."""
    # Policies of this package come first: a plugin of the same name does not replace one.
    return tuple(dict.fromkeys((*POLICIES, *plugins("policies"))))


def policy_named(name: str) -> Policy:
    """The policy of this name. Raises ConfigError if another package's cannot be imported."""
    return POLICIES[name] if name in POLICIES else load_plugin("policies", name)

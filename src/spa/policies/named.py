"""Policies that self-play and evaluations know by name: ours, and those of other packages."""

from collections.abc import Callable
from dataclasses import dataclass

from spa.envs.base import TextEnv
from spa.plugins import load_plugin, plugins
from spa.policies.expert import expert_engine, require_solver
from spa.policies.scripted import ScriptedEngine, random_engine
from spa.prompts.template import ChatTemplate


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

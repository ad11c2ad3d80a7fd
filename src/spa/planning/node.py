"""Nodes of a planner's search (a response and the state that it would lead to), and the tree of
nodes that belongs to a prompt."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from spa.envs.base import StateText, TextEnv
from spa.envs.branch import execute
from spa.envs.limits import SLOW, EnvFault, boundary
from spa.types import Completion, ParsedResponse, Prompt

GOAL = 1.0
"""The value of a state in which the goal is reached."""
NO_STATE = -2.0
"""The value of a response without a readable prediction; values of states are from -1 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A response, the state that it would lead to, and the value of that state."""

    response: Completion
    parsed: ParsedResponse
    state: str | None
    value: float
    # whether the actions really lead to `state` from the state in which the response was sampled;
    # None: unknown
    correct: bool | None
    # a copy of the game in `state`; None if the game has ended, or if no copy is in that state
    env: TextEnv | None = None
    root: int = 0  # index of this node's ancestor among the responses to the real state
    depth: int = 1  # turns from the real state to this one
    # number of actions left in the episode after this response; None: no limit is known
    actions_left: int | None = None
    # the node in whose state the response was sampled; None: the real state
    parent: "Node | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """A state in which responses are sampled: the real state, or the state of the node `parent`.
    `env` is a copy of the game in this state; None if there is none."""

    prompt: Prompt
    env: TextEnv | None
    root: int = 0
    depth: int = 1
    parent: Node | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of actions: the state, and a copy of the game in it. Both are None if the result is
    unknown; the copy is None if the game has ended."""

    state: str | None = None
    env: TextEnv | None = None


class Tree:
    """The nodes searched so far for one prompt. Responses to the real state come first."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.turn = prompt.turn
        self.nodes: list[Node] = []
        self.entered: set[str] = set()  # texts of the states that were expanded
        self.fault: EnvFault | None = None

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Store an error of the environment that occurs within the block as the tree's `fault`,
        instead of raising it."""
        try:
            with boundary("planning", self.prompt.limit_s, advice=SLOW):
                yield
        except EnvFault as error:
            self.fault = error

    def failed(self) -> Completion:
        """An error completion that reports why the game failed."""
        return Completion(
            text=str(self.fault),
            token_ids=None,
            logprobs=None,
            finish_reason="error",
            error=self.fault,
        )

    def goals(self) -> list[Node]:
        """Nodes in which the goal is reached, in the order in which they were found."""
        return [node for node in self.nodes if node.value >= GOAL]

    def line(self, chosen: int) -> dict[str, Any]:
        """Log record of a turn: the predictions, and their cost in tokens. `chosen` is the index of
        the played response."""
        return {
            "episode_id": self.prompt.episode_id,
            "turn": self.turn,
            "chosen": chosen,
            "tokens": [
                None if node.response.token_ids is None else len(node.response.token_ids)
                for node in self.nodes
            ],
            "imagined": [
                {
                    "actions": node.parsed.actions,
                    "state": node.state,
                    "value": node.value,
                    "right": node.correct,
                    "root": node.root,
                    "depth": node.depth,
                }
                for node in self.nodes
            ],
        }


def path_to(node: Node) -> list[Node]:
    """The nodes from the real state to `node`."""
    path = [node]
    while path[0].parent is not None:
        path.insert(0, path[0].parent)
    return path


def simulate(
    env: TextEnv | None, actions: Sequence[str], mode: StateText, rng: np.random.Generator
) -> Outcome:
    """Apply the actions in a copy of the game with its own random stream. The outcome is unknown if
    the game cannot be copied or no action is given."""
    # The seed is sampled even without a copy, so that later samples do not depend on whether
    # there is one.
    seed = int(rng.integers(2**31))
    if env is None:
        return Outcome()
    try:
        twin = env.clone(seed)
    except NotImplementedError:
        return Outcome()
    # A response predicts the state before the opponent moves.
    taken, over = execute(twin, actions, len(actions), own_turn=True)
    if not taken:
        return Outcome()
    return Outcome(state=twin.world_state_text(mode), env=None if over else twin)


def same_state(state: str | None, truth: str | None) -> bool | None:
    """Return whether a state equals the true one, apart from surrounding white space; None if the
    true one is unknown."""
    return None if truth is None else state is not None and state.strip() == truth.strip()

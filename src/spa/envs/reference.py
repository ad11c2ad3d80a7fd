"""Reference policies: simple policies that play without learning.

They act on the game itself, one action at a time, and see the state after each action. A model's
score means little unless it exceeds theirs.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from spa.envs.base import TextEnv
from spa.envs.limits import checked_step
from spa.seeds import stream

NextAction = Callable[[TextEnv, Any], str | None]
"""Function of the game and a NumPy generator for random choices. Returns the next action, or None
if the game does not support the policy."""


def random_action(env: TextEnv, rng: Any) -> str | None:
    """Return a uniformly random legal action."""
    return env.random_action(rng)


def walk(env: TextEnv, rng: Any) -> str | None:
    """Return the next action of the game's greedy walk (`TextEnv.greedy_action`)."""
    return env.greedy_action(rng)


def look_ahead(env: TextEnv, rng: Any) -> str | None:
    """Return the next action by one-step look-ahead with the true game: each legal action is tried
    on a copy.

    An action that wins is preferred. Otherwise, the action that leads to the lowest
    `TextEnv.goal_distance` is chosen. Actions that lose the game are avoided. Ties are broken at
    random. In a game with chance, the copy has its own noise. Returns None if the game cannot be
    copied, lists no actions or has no distance.
    """
    if env.goal_distance() is None:
        return None
    costs = dict[str, float]()
    for name in env.legal_actions():
        try:
            twin = env.clone(int(rng.integers(2**31)))
        except NotImplementedError:
            return None
        action = twin.to_action(name)
        if action is not None:
            costs[name] = _cost(twin, checked_step(twin.step(action)))
    best = [name for name, cost in costs.items() if cost == min(costs.values())]
    return best[int(rng.integers(len(best)))] if best else None


def _cost(env: TextEnv, result: tuple[float, bool, dict[str, Any]]) -> float:
    _, over, info = result
    if info["success"]:
        return -1.0
    # `state_outcome` also names dead ends at which the game does not end.
    if over or env.state_outcome():
        return float("inf")
    return env.goal_distance() or 0.0


REFERENCES: dict[str, NextAction] = {
    "random": random_action,
    "walk": walk,
    "look_ahead": look_ahead,
}
"""The reference policies by name. The success rate of the best policy is computed separately, by
`TextEnv.best_success`."""


def policy_success(
    env: TextEnv, policy: NextAction, limit: int, rng: np.random.Generator
) -> bool | None:
    """Play `env` with a policy and return whether it wins within `limit` actions from the current
    state.

    Changes `env`. Returns None if the game does not support the policy.
    """
    for _ in range(limit):
        text = policy(env, rng)
        if text is None:
            return None
        action = env.to_action(text)
        if action is None:
            continue
        _, over, info = checked_step(env.step(action))
        if over:
            return bool(info["success"])
    return False


def reference_success(
    env: TextEnv, name: str, limit: int, *, seed: int, sample: int = 0
) -> bool | None:
    """Return `policy_success` of the reference policy `name`. `seed`, `name` and `sample` determine
    the random numbers."""
    return policy_success(env, REFERENCES[name], limit, stream(seed, f"reference/{name}", sample))

"""A reward function of your own: a cost for each action that changes nothing.

docs/extending.md adds it to the game's reward with a small weight. This command tries it in place of that reward:
spa run tiny custom_envs.FrozenLakeNoSlip.reward=shaped_reward:no_idling
"""

from spa.types import Turn


def no_idling(turn: Turn) -> float:
    """Minus the number of actions of the turn that had no effect."""
    return -float(sum(not info["action_is_effective"] for info in turn.infos))

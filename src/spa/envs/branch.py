"""What if: a game is continued in a copy, and the original is left as it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spa.envs.base import Action, TextEnv
from spa.envs.limits import EnvFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """How a running game came about: for environments that cannot be copied, it is played again."""

    make: Callable[[], TextEnv]
    seed: int
    options: Mapping[str, Any]
    actions: Sequence[Action]


def branch(env: TextEnv, past: Past, noise_seed: int | None = None) -> TextEnv:
    """A copy of the running game `env`: its `clone`, or else a new environment in which `past` is
    played again.

    With `noise_seed`, chance is sampled afresh from here on; a game that is replayed cannot do
    that, and continues as the original would. Raises EnvFault if playing again leads to another
    state: such a game is not fixed by its seed.
    """
    try:
        return env.clone(noise_seed)
    except NotImplementedError:
        pass
    twin = past.make()
    twin.reset(seed=past.seed, options=dict(past.options))
    for action in past.actions:
        twin.step(action)
    # What a game hides is not compared: only states that can be shown.
    if twin.state_text("grid_and_coords") != env.state_text("grid_and_coords"):
        raise EnvFault(
            f"clone: replaying {len(past.actions)} actions of puzzle seed {past.seed} leads "
            "to another state. The game must depend only on its actions, seed and noise_seed"
        )
    return twin

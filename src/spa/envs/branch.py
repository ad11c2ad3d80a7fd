"""Counterfactuals: continue a game in a copy and leave the original unchanged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spa.envs.base import Action, TextEnv, look_as_mover
from spa.envs.limits import EnvFault, checked_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """History of a running game, for replaying it if the environment cannot be copied. `make`
    creates a new environment, `seed` and `options` are the arguments of its `reset`, and `actions`
    the actions since then."""

    make: Callable[[], TextEnv]
    seed: int
    options: Mapping[str, Any]
    actions: Sequence[Action]


def branch(env: TextEnv, past: Past, noise_seed: int | None = None) -> TextEnv:
    """Return a copy of the running game `env`: its `clone`, or else a new environment in which
    `past` is replayed.

    With `noise_seed`, a clone samples new noise from now on. A replayed game ignores `noise_seed`
    and has the same noise as the original. Raises EnvFault if the replay reaches another state than
    `env`, which means that the seeds do not determine the game.
    """
    try:
        return env.clone(noise_seed)
    except NotImplementedError:
        pass
    twin = past.make()
    twin.reset(seed=past.seed, options=dict(past.options))
    for action in past.actions:
        twin.step(action)
    # Compare the state text that the player to move sees. Hidden state cannot be compared.
    for game in (twin, env):
        look_as_mover(game)
    if twin.state_text("grid_and_coords") != env.state_text("grid_and_coords"):
        raise EnvFault(
            f"clone: replaying {len(past.actions)} actions of puzzle seed {past.seed} leads "
            "to another state. The game must depend only on its actions, seed and noise_seed"
        )
    return twin


def execute(
    env: TextEnv, actions: Sequence[str], limit: int, *, own_turn: bool = False
) -> tuple[tuple[str, ...], bool]:
    """Execute `actions` until the game ends or `limit` actions were taken. Texts that name no
    action are skipped.

    With `own_turn`, execution also stops once it is another player's turn. Returns the executed
    actions and whether the game ended.
    """
    taken: list[str] = []
    mover = env.current_player() if own_turn and env.players > 1 else None
    for text in actions:
        action = env.to_action(text)
        # Text that names no action is skipped, as in a rollout, and does not count towards the
        # limit.
        if action is None:
            continue
        if len(taken) >= limit:
            break
        over = checked_step(env.step(action))[1]
        taken.append(text)
        if over:
            return tuple(taken), True
        if mover is not None and env.current_player() != mover:
            break
    return tuple(taken), False

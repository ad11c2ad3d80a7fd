"""The user's own reward functions (`custom_envs.TAG.reward`), for PPO and evaluation.

A reward function takes a played `Turn` and returns a number. The weighted sum of all functions
replaces the turn's reward. Prompts still show the game's own reward. Self-play does not use these
functions, so its data stay valid if the reward changes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from spa.errors import ConfigError
from spa.plugins import load_setting
from spa.types import Episode, Turn

GAME = "game"
"""The name of the game's own reward in a weighted sum."""

TurnReward = Callable[[Turn], float]


@dataclass(frozen=True, slots=True)
class WeightedReward:
    """One term of the weighted sum."""

    name: str
    function: TurnReward | None  # None: the game's own reward
    weight: float


def load_rewards(key: str, setting: str | Mapping[str, float] | None) -> tuple[WeightedReward, ...]:
    """Load the terms of a `reward` setting, which is the name of one function or a mapping from
    names to weights. Returns no terms for None. `key` is the setting's path, for error messages.

    Raises ConfigError for a name that cannot be loaded.
    """
    if setting is None:
        return ()
    # A single function is a sum of one term with weight 1.
    weights = {setting: 1.0} if isinstance(setting, str) else setting
    return tuple(
        WeightedReward(name, None if name == GAME else load_setting(key, name, (GAME,)), weight)
        for name, weight in weights.items()
    )


def with_rewards(
    episodes: Sequence[Episode], terms: Mapping[str, Sequence[WeightedReward]]
) -> list[Episode]:
    """Return the episodes with the reward terms of their tags applied. `Turn.reward_terms` contains
    the unweighted value of each term.

    Raises ConfigError if a function raises, or returns anything but a finite number.
    """
    return [
        replace(
            episode,
            turns=tuple(rewarded(turn, terms.get(episode.tag, ())) for turn in episode.turns),
        )
        for episode in episodes
    ]


def rewarded(turn: Turn, terms: Sequence[WeightedReward]) -> Turn:
    """Return the turn with the weighted sum of these terms as its reward; unchanged if there are no
    terms. Raises ConfigError as `with_rewards` does."""
    if not terms:
        return turn
    values = {
        term.name: turn.reward if term.function is None else _value(term, turn) for term in terms
    }
    total = sum(term.weight * values[term.name] for term in terms)
    return replace(turn, reward=total, reward_terms=values)


def _value(term: WeightedReward, turn: Turn) -> float:
    assert term.function is not None
    try:
        value = float(term.function(turn))
    # The function is the user's code, so its exceptions are reported under its name and not as a
    # bug of spa.
    except Exception as error:
        raise ConfigError(
            f"the reward function {term.name} raised {type(error).__name__}: {error}. Correct the "
            "function."
        ) from error
    if not math.isfinite(value):
        raise ConfigError(
            f"the reward function {term.name} returned {value}, but a reward must be finite; correct the "
            "function"
        )
    return value

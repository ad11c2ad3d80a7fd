"""Environment cards: reference scores of each tag, measured before any training.

A card fixes a tag: its options, the hash of its first puzzles, the best possible success within the
limit of actions, and the success of random play. A score means little without the last two. The
limit of actions is `max_actions_per_traj`, or fewer if the turns allow fewer.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Reference scores of a tag. Shares are between 0 and 1."""

    tag: str
    env_type: str
    version: int
    options: dict[str, Any]
    max_actions_per_traj: int  # or fewer, if the turns allow fewer
    distinct_puzzles: int  # among the first 1,000 seeds; fewer than 1,000 means that puzzles repeat
    puzzles_hash: str  # sha256 of the puzzle texts of the seeds 0 to 999
    # Mean probability that the best policy succeeds within `max_actions_per_traj`; None if unknown.
    optimum: float | None
    optimum_by: str
    random_success: float  # success rate of uniformly random legal actions
    random_score: float  # mean sum of rewards of those episodes
    # Success rates of two other reference policies (`spa.envs.reference`); None if the game does
    # not support them.
    walk_success: float | None
    look_ahead_success: float | None

    def describes(self, env_type: str, options: Mapping[str, Any] | None, max_actions: int) -> bool:
        """Return whether the card was measured with these settings."""
        return (self.env_type, self.options, self.max_actions_per_traj) == (
            env_type,
            plain_options(options),
            max_actions,
        )


@lru_cache
def shipped() -> tuple[Card, ...]:
    """All shipped cards: first those of the tags in `base`, then those of presets with other
    options or turn limits."""
    text = (resources.files("spa") / "assets" / "cards.json").read_text(encoding="utf-8")
    return tuple(Card(**row) for row in json.loads(text)["cards"])


@lru_cache
def cards() -> dict[str, Card]:
    """The shipped cards of the tags in `base`."""
    first: dict[str, Card] = {}
    for row in shipped():
        first.setdefault(row.tag, row)
    return first


def card_with(
    tag: str,
    env_type: str,
    options: Mapping[str, Any] | None,
    max_actions: int,
    *,
    among: Iterable[Card] | None = None,
) -> Card | None:
    """The card of a tag that was measured with these settings, from the shipped cards or from
    `among`; None if there is no such card."""
    rows = shipped() if among is None else among
    same = (row for row in rows if row.tag == tag and row.describes(env_type, options, max_actions))
    return next(same, None)


def mean_success(won: Sequence[bool | None]) -> float | None:
    """The share of puzzles that a policy solves; None if there are no puzzles, or if the game does
    not support the policy on one of them."""
    return None if None in won or not won else round(sum(map(bool, won)) / len(won), 4)


def share(success: float | None) -> str:
    """Format a success rate for a table."""
    return "not available" if success is None else f"{success:.1%}"


def mean_optimum(best: Sequence[float | None]) -> float | None:
    """The mean success of the best policy over puzzles; None if there are no puzzles, or if it is
    unknown for one of them."""
    known = [share for share in best if share is not None]
    return sum(known) / len(known) if known and len(known) == len(best) else None


def plain_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options as JSON would store them: keys are strings."""
    return json.loads(json.dumps(dict(options or {}), default=dict))

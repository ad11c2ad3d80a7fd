"""Environment cards: reference scores of each tag, measured before any training.

A card records the options of a tag and the hash of its first 1,000 puzzles. It also records the
best possible success rate within the limit of actions, and the success rate of random play. A
model's score means little without these two. The limit of actions is `max_actions_per_traj`, or a
smaller number if the turns allow fewer actions.
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
    version: int  # of the puzzles; increases whenever they change
    options: dict[str, Any]
    max_actions_per_traj: int  # limit of actions; smaller than the setting if the turns allow fewer
    distinct_puzzles: int  # among the first 1,000 seeds; fewer than 1,000 means that puzzles repeat
    puzzles_hash: str  # sha256 of the puzzle texts of the seeds 0 to 999
    # Mean probability that the best policy succeeds within `max_actions_per_traj`; None if unknown.
    optimum: float | None
    optimum_by: str  # method that computed `optimum`
    random_success: float  # success rate of uniformly random legal actions
    random_score: float  # mean total reward of the same random episodes
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
    """Return all shipped cards. The tags in `base` come first, then presets with other options or
    turn limits."""
    text = (resources.files("spa") / "assets" / "cards.json").read_text(encoding="utf-8")
    return tuple(Card(**row) for row in json.loads(text)["cards"])


@lru_cache
def cards() -> dict[str, Card]:
    """Map each tag to its first shipped card. For a tag in `base`, this is the card with the
    options that `base` sets."""
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
    """Return the card of a tag that was measured with these settings; None if there is no such
    card. Searches the cards in `among`, by default the shipped ones."""
    rows = shipped() if among is None else among
    same = (row for row in rows if row.tag == tag and row.describes(env_type, options, max_actions))
    return next(same, None)


def mean_success(won: Sequence[bool | None]) -> float | None:
    """Return the share of puzzles that a policy solves.

    `won` has one entry per puzzle, which is None if the game does not support the policy for that
    puzzle. Returns None if any entry is None or there are no puzzles.
    """
    return None if None in won or not won else round(sum(map(bool, won)) / len(won), 4)


def share(success: float | None) -> str:
    """Format a success rate for a table."""
    return "not available" if success is None else f"{success:.1%}"


def mean_optimum(best: Sequence[float | None]) -> float | None:
    """Return the mean success probability of the best policy over puzzles; None if there are no
    puzzles, or if it is unknown for one of them."""
    known = [share for share in best if share is not None]
    return sum(known) / len(known) if known and len(known) == len(best) else None


def plain_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options after a round trip through JSON, which turns all keys into strings."""
    return json.loads(json.dumps(dict(options or {}), default=dict))

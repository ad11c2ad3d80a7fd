"""Environment cards: what is known about each tag before anything is trained.

A card freezes a tag: its options, the hash of its first puzzles, the best that any policy can reach
within the cap of actions, and what random play gets. A score means little without the last two. The
cap is what an episode can come to: `max_actions_per_traj`, or fewer actions if its turns hold fewer.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from spa.envs.base import TextEnv, look_as_mover
from spa.envs.reference import reference_success
from spa.envs.registry import make_env
from spa.errors import ConfigError, nearest
from spa.seeds import stream, stream_seed

PUZZLES = 1000
"""A card is measured on the puzzles of the seeds 0 to 999."""

OPTIMUM_BY = {
    "bandit": "closed form",
    "frozen_lake": "value iteration",
    "metamathqa": "answer key",
    "webshop": "scripted purchase",
}
"""Method that computes the optimum of a type. Types without an entry use an exact solver."""

VERSIONS: dict[str, int] = {}
"""Version of a type's puzzles, raised whenever they change. Types without an entry: 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The facts of a tag. Shares are between 0 and 1."""

    tag: str
    env_type: str
    version: int
    options: dict[str, Any]
    max_actions_per_traj: int  # those that the turns hold, if they are fewer
    distinct_puzzles: int  # of the first 1,000 seeds; fewer than 1,000 means that puzzles repeat
    puzzles_hash: str  # sha256 of the puzzle texts of the seeds 0 to 999
    # Mean probability that the best policy succeeds within `max_actions_per_traj`; None if unknown.
    optimum: float | None
    optimum_by: str
    random_success: float  # share of successful episodes of uniformly random legal actions
    random_score: float  # mean sum of rewards of those episodes
    # Shares of successful episodes of two other reference policies (`spa.envs.reference`); None
    # where the game does not offer what they need.
    walk_success: float | None
    look_ahead_success: float | None

    def describes(self, env_type: str, options: Mapping[str, Any] | None, max_actions: int) -> bool:
        """Return whether the card was measured with these settings."""
        return (self.env_type, self.options, self.max_actions_per_traj) == (
            env_type,
            _plain(options),
            max_actions,
        )


@lru_cache
def shipped() -> tuple[Card, ...]:
    """All shipped cards: those of the tags in `base`, then those of the presets with other options or
    turns."""
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
    """The card of a tag that was measured with these settings, of the shipped ones or `among`; None
    if there is none."""
    rows = shipped() if among is None else among
    same = (row for row in rows if row.tag == tag and row.describes(env_type, options, max_actions))
    return next(same, None)


def card(tag: str) -> Card:
    """The card of `tag`; raises ConfigError that names the nearest tag if there is none."""
    reference = cards().get(tag)
    if reference is None:
        raise ConfigError(
            f"The environment tag {tag!r} has no reference scores; {nearest(tag, cards())}"
        )
    return reference


def measure(
    tag: str,
    env_type: str,
    options: Mapping[str, Any] | None,
    max_actions: int,
    *,
    puzzles: int = PUZZLES,
) -> Card:
    """A new card of `tag`, measured on its first puzzles: 1,000 take a second or so, some seconds
    for large boards."""
    env = make_env(env_type, options)
    texts = []
    best = []
    wins = 0
    score = 0.0
    others: dict[str, list[bool | None]] = {"walk": [], "look_ahead": []}
    for seed in range(puzzles):
        # As in training, the noise seed differs from the puzzle seed.
        options_of_reset = {"noise_seed": stream_seed(seed, "card/noise")}
        for name, won in others.items():
            # A policy that is not available on the first puzzle is not asked again.
            if won[:1] != [None]:
                env.reset(seed=seed, options=options_of_reset)
                won.append(reference_success(env, name, max_actions, seed=seed))
        env.reset(seed=seed, options=options_of_reset)
        texts.append(env.puzzle_text())
        best.append(env.best_success(max_actions))
        success, reward = random_episode(env, seed, max_actions)
        wins = wins + success
        score = score + reward
    optimum = mean_optimum(best)
    return Card(
        tag=tag,
        env_type=env_type,
        version=VERSIONS.get(env_type, 1),
        options=_plain(options),
        max_actions_per_traj=max_actions,
        distinct_puzzles=len(set(texts)),
        puzzles_hash=_hash(texts),
        optimum=None if optimum is None else round(optimum, 4),
        optimum_by="unknown" if optimum is None else OPTIMUM_BY.get(env_type, "exact solver"),
        random_success=round(wins / puzzles, 4),
        random_score=round(score / puzzles, 4),
        walk_success=mean_success(others["walk"]),
        look_ahead_success=mean_success(others["look_ahead"]),
    )


def mean_success(won: Sequence[bool | None]) -> float | None:
    """The share of puzzles that a policy wins; None if it is not available for one of them."""
    return None if None in won or not won else round(sum(map(bool, won)) / len(won), 4)


def share(success: float | None) -> str:
    """A success rate for a table."""
    return "not available" if success is None else f"{success:.1%}"


def mean_optimum(best: Sequence[float | None]) -> float | None:
    """The mean success of the best policy over puzzles; None if there is none, or one whose best is
    not known."""
    known = [share for share in best if share is not None]
    return sum(known) / len(known) if known and len(known) == len(best) else None


def puzzles_hash(env: TextEnv, puzzles: int = PUZZLES) -> str:
    """The hash of the first puzzles of `env`, as cards hold it."""
    texts = []
    for seed in range(puzzles):
        env.reset(seed=seed)
        texts.append(env.puzzle_text())
    return _hash(texts)


def _hash(texts: Sequence[str]) -> str:
    # The zero byte separates the texts: without it, "ab", "c" and "a", "bc" would have equal
    # hashes.
    whole = "".join(f"{text}\0" for text in texts)
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()


def random_episode(env: TextEnv, seed: int, max_actions: int) -> tuple[bool, float]:
    """Success and sum of rewards of uniformly random legal actions from the current state of `env`;
    in a game of several players those of the first one, while all move so."""
    rng = stream(seed, "card/random")
    total = 0.0
    for _ in range(max_actions):
        look_as_mover(env)
        action = env.to_action(env.random_action(rng))
        # A text that is not understood still counts as one of `max_actions`.
        if action is None:
            continue
        _, reward, terminated, truncated, info = env.step(action)
        # Random play moves for all players; the card scores the first.
        total += float(reward if env.players == 1 else info["rewards"][0])
        if terminated or truncated:
            return bool(info["success"] if env.players == 1 else info["successes"][0]), total
    return False, total


def to_json(scores: Iterable[Card], command: str) -> str:
    """The text of a file of cards, such as `assets/cards.json`, that `command` has made."""
    made = f"{command}, on the puzzles of the seeds 0 to {PUZZLES - 1}"
    rows = [asdict(item) for item in scores]
    return json.dumps({"made_by": made, "cards": rows}, indent=1, ensure_ascii=False) + "\n"


def _plain(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options as JSON has them: keys are texts."""
    return json.loads(json.dumps(dict(options or {}), default=dict))

"""Measure the reference scores of environments (`spa.envs.cards`), which `spa env measure`
writes."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from spa.envs.base import TextEnv, look_as_mover
from spa.envs.cards import Card, mean_optimum, mean_success, plain_options
from spa.envs.reference import reference_success
from spa.envs.registry import make_env
from spa.seeds import stream, stream_seed

PUZZLES = 1000
"""Number of puzzles on which reference scores are measured. Their seeds are 0 to 999."""

OPTIMUM_BY = {
    "bandit": "closed form",
    "frozen_lake": "value iteration",
    "metamathqa": "answer key",
    "webshop": "scripted purchase",
}
"""Environment type -> method that computes its optimum. All other types use an exact solver."""

VERSIONS: dict[str, int] = {}
"""Environment type -> version of its puzzles, raised whenever they change. The default is 1."""


def measure(
    tag: str,
    env_type: str,
    options: Mapping[str, Any] | None,
    max_actions: int,
    *,
    puzzles: int = PUZZLES,
) -> Card:
    """Measure the reference scores of `tag` on its first `puzzles` puzzles. 1,000 puzzles take
    about one second, or several seconds on large boards."""
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
            # Policies that are not available on the first puzzle are skipped on the others.
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
        options=plain_options(options),
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


def puzzles_hash(env: TextEnv, puzzles: int = PUZZLES) -> str:
    """Return the hash of the first `puzzles` puzzles of `env`, as stored in `Card.puzzles_hash`."""
    texts = []
    for seed in range(puzzles):
        env.reset(seed=seed)
        texts.append(env.puzzle_text())
    return _hash(texts)


def _hash(texts: Sequence[str]) -> str:
    # A zero byte separates the texts: without it, "ab", "c" and "a", "bc" would have equal hashes.
    whole = "".join(f"{text}\0" for text in texts)
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()


def random_episode(env: TextEnv, seed: int, max_actions: int) -> tuple[bool, float]:
    """Play uniformly random legal actions from the current state of `env`. Returns success and the
    sum of rewards. In a game of several players, all move at random, and the result is that of the
    first player."""
    rng = stream(seed, "card/random")
    total = 0.0
    for _ in range(max_actions):
        look_as_mover(env)
        action = env.to_action(env.random_action(rng))
        # An action that is not understood still counts towards `max_actions`.
        if action is None:
            continue
        _, reward, terminated, truncated, info = env.step(action)
        # Random play moves for all players; only the first player's result counts.
        total += float(reward if env.players == 1 else info["rewards"][0])
        if terminated or truncated:
            return bool(info["success"] if env.players == 1 else info["successes"][0]), total
    return False, total


def to_json(scores: Iterable[Card], command: str) -> str:
    """Return the text of a file with reference scores, such as `assets/cards.json`. The file
    records `command` as its origin."""
    made = f"{command}, on the puzzles of the seeds 0 to {PUZZLES - 1}"
    rows = [asdict(item) for item in scores]
    return json.dumps({"made_by": made, "cards": rows}, indent=1, ensure_ascii=False) + "\n"

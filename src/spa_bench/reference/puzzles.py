"""Random puzzles and moves from which baselines learn. The argument `purpose` names the random
stream of the puzzles."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from typing import Any, TypeVar

from spa.envs.base import TextEnv
from spa.envs.limits import checked_step
from spa.rollout.loop import puzzle_hash
from spa.seeds import stream_seed

K = TypeVar("K")
T = TypeVar("T")


def different_puzzles(
    env: TextEnv, *, seed: int, purpose: str, held_out: Collection[str]
) -> Iterator[int]:
    """Reset `env` to one puzzle after another, and yield the number of each. Puzzles are skipped if
    their content hash is in `held_out` or repeats an earlier puzzle."""
    known = set(held_out)
    for number in count():
        _reset(env, seed, purpose, number)
        content = puzzle_hash(env)
        if content not in known:
            known.add(content)
            yield number


def random_moves(
    env: TextEnv,
    moves: int,
    rng: Any,
    *,
    seed: int,
    purpose: str,
    look: Callable[[], T],
    most: int | None = None,
) -> Iterator[tuple[T, str]]:
    """Play `moves` random moves on random puzzles, at most `most` on each. After each move, yield
    (value, action), where `look` returned the value before the move."""
    over = True
    played = 0
    puzzles = count()
    for _ in range(moves):
        if over or played == most:
            _reset(env, seed, purpose, next(puzzles))
            played = 0
        played += 1
        name = env.random_action(rng)
        before = look()
        action = env.to_action(name)
        assert action is not None
        over = checked_step(env.step(action))[1]
        yield before, name


def most_frequent(counts: Mapping[K, Counter[T]]) -> dict[K, T]:
    """The most frequent value of each key."""
    return {key: seen.most_common(1)[0][0] for key, seen in counts.items()}


def _reset(env: TextEnv, seed: int, purpose: str, number: int) -> None:
    env.reset(seed=stream_seed(seed, f"{purpose}/puzzle", number) % 2**31)

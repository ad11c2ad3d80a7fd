"""Pass@k: the chance that at least one of k attempts at a puzzle succeeds."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spa.types import Metrics

Puzzles = dict[str, tuple[int, int]]
"""Puzzle -> (attempts, successes)."""


def outcomes(episodes: Iterable[Mapping[str, Any]]) -> Puzzles:
    """Count attempts and successes per puzzle in recorded episodes. Skips episodes that ended with
    an error."""
    counts: dict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        # Counting an episode that ended with an error as a loss would blame the policy.
        if episode.get("stop") != "error":
            # The seed alone does not identify a puzzle, because the puzzle also depends on the
            # settings. The two players of a game have the same puzzle but are counted separately.
            names = [episode.get(name) for name in ("tag", "puzzle_seed", "puzzle_hash")]
            names += [episode["seat"]] if "seat" in episode else []
            counts["/".join(map(str, names))].append(bool(episode.get("success")))
    return {puzzle: (len(won), sum(won)) for puzzle, won in counts.items()}


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> NDArray[np.float64]:
    """Unbiased Pass@k from c successes in n attempts, 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374).

    Args:
        n: attempts per puzzle, any shape that broadcasts with `c`.
        c: successes per puzzle.
        k: number of attempts, at least one of which has to succeed.

    Returns:
        One probability per puzzle. It is exactly 1 if n - c < k. For n = k, it is 1 if any attempt
        succeeded, else 0.

    Raises:
        ValueError: k < 1, k > n somewhere, or c is not within 0..n.
    """
    attempts, successes = np.broadcast_arrays(
        np.asarray(n, dtype=np.int64), np.asarray(c, dtype=np.int64)
    )
    if k < 1:
        raise ValueError(f"pass_at_k: k must be at least 1, but is {k}")
    if np.any(attempts < k):
        raise ValueError(
            f"pass_at_k: k = {k} is larger than the number of attempts ({int(attempts.min())}). Lower k."
        )
    if np.any((successes < 0) | (successes > attempts)):
        raise ValueError("pass_at_k: successes must lie between 0 and the number of attempts")
    # The product of ratios avoids binomial coefficients, which overflow for large n. From i = n - c
    # on, the factors are 0: the maximum keeps them from becoming negative.
    fail = np.ones(attempts.shape)
    for i in range(k):  # the chance that attempts 1..k, sampled without replacement, all fail
        fail = fail * np.maximum(attempts - successes - i, 0) / (attempts - i)
    return 1.0 - fail


def per_puzzle(
    successes: ArrayLike, puzzle_ids: ArrayLike
) -> tuple[NDArray, NDArray[np.int64], NDArray[np.int64]]:
    """Count attempts and successes per puzzle, from one success flag and one puzzle id per episode
    in any order.

    Returns:
        puzzle ids (sorted, unique), attempts n, successes c; each `[P]`.
    """
    ids, index = np.unique(np.asarray(puzzle_ids), return_inverse=True)
    won = np.asarray(successes, dtype=bool)
    # `minlength` gives a 0 to puzzles without any success.
    return ids, np.bincount(index, minlength=len(ids)), np.bincount(index[won], minlength=len(ids))


def pass_metrics(successes: ArrayLike, puzzle_ids: ArrayLike, ks: Iterable[int]) -> Metrics:
    """Pass@k averaged over puzzles, for each k.

    Args:
        successes: bool `[N]`, one per episode.
        puzzle_ids: `[N]`, equal for the attempts at one puzzle.
        ks: values of k to compute. A puzzle with fewer than k attempts is left out for that k. A k for which no
            puzzle remains is omitted.

    Returns:
        pass@k for each remaining k, and pass@any: the fraction of puzzles solved at least once.
    """
    _, n, c = per_puzzle(successes, puzzle_ids)
    metrics: Metrics = {}
    for k in ks:
        enough = n >= k
        # The mean is over puzzles. Pass@k of each puzzle is unbiased for its own n, so unequal
        # numbers of attempts cause no bias.
        if enough.any():
            metrics[f"pass@{k}"] = float(pass_at_k(n[enough], c[enough], k).mean())
    if len(n):
        metrics["pass@any"] = float((c > 0).mean())
    return metrics

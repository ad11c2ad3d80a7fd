"""Tokens that rows begin with alike, so that they are read once."""

from collections.abc import Sequence

import numpy as np

# Prefixes that groups of rows share are read separately if that
# reduces the tokens to read, padding included, to at most this share.
_MUCH_LESS = 0.75


def common_length(one: np.ndarray, other: np.ndarray) -> int:
    """Length of the common prefix."""
    tokens = min(len(one), len(other))
    differs = np.flatnonzero(one[:tokens] != other[:tokens])
    return int(differs[0]) if len(differs) else tokens


def shared_beginnings(rows: Sequence[np.ndarray]) -> list[tuple[int, int]] | None:
    """The group of each row, int [T], and how many tokens its members begin with alike. A row joins
    if it shares more than the group loses, and keeps a token for itself. None if reading these
    beginnings once saves too little."""
    groups: list[list[int]] = []
    tokens: list[int] = []
    # Sorted by their tokens, neighbouring rows have the longest common prefixes.
    for i in sorted(range(len(rows)), key=lambda i: rows[i].tolist()):
        shared = common_length(rows[groups[-1][0]][: tokens[-1]], rows[i][:-1]) if groups else 0
        if groups and shared > (tokens[-1] - shared) * len(groups[-1]):
            groups[-1].append(i)
            tokens[-1] = shared
        else:
            groups.append([i])
            tokens.append(len(rows[i]) - 1)
    found = {i: (number, tokens[number]) for number, group in enumerate(groups) for i in group}
    rest = max(len(ids) - found[i][1] for i, ids in enumerate(rows))
    # Compare the tokens to read with groups and without, padding included.
    if len(groups) * max(tokens) + len(rows) * rest > _MUCH_LESS * len(rows) * max(map(len, rows)):
        return None
    return [found[i] for i in range(len(rows))]

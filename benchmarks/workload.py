"""Workload that `bench.py` gives every side: the same tokens for all of them. Imports NumPy alone,
so that peers in environments of their own can use it."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Groups of episodes that begin with the same prompt; every response has the same length."""

    groups: int
    group_size: int
    turns: int
    prompt: int  # tokens
    response: int
    state: int  # tokens that the environment adds after a response

    def prompts(self, vocabulary: int) -> list[list[int]]:
        """The first prompt of every episode."""
        rng = np.random.default_rng(0)
        firsts = rng.integers(5, vocabulary, size=(self.groups, self.prompt)).tolist()
        return [list(first) for first in firsts for _ in range(self.group_size)]

    def states(self, vocabulary: int, turn: int) -> list[list[int]]:
        """Tokens that the environment adds to every episode after a turn."""
        rng = np.random.default_rng(turn + 1)
        return rng.integers(
            5, vocabulary, size=(self.groups * self.group_size, self.state)
        ).tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of a batch with lengths from `shortest` to `longest`; the second half of each carries loss."""

    rows: int
    shortest: int
    longest: int

    def batch(self, vocabulary: int) -> list[list[int]]:
        """Token ids of every row."""
        rng = np.random.default_rng(7)
        lengths = np.linspace(self.shortest, self.longest, self.rows).astype(int)
        return [rng.integers(5, vocabulary, size=n).tolist() for n in rng.permutation(lengths)]


ROLLOUT = {
    "small": Rollout(groups=8, group_size=8, turns=5, prompt=200, response=40, state=60),
    "real": Rollout(groups=2, group_size=8, turns=2, prompt=330, response=48, state=60),
}
ROLLOUT_QUICK = {
    "small": Rollout(groups=2, group_size=8, turns=3, prompt=200, response=24, state=60),
    "real": Rollout(groups=1, group_size=8, turns=2, prompt=160, response=12, state=40),
}
ROWS = {
    "small": Rows(rows=32, shortest=150, longest=420),
    "real": Rows(rows=8, shortest=200, longest=400),
}
ROWS_QUICK = {
    "small": Rows(rows=16, shortest=100, longest=250),
    "real": Rows(rows=2, shortest=100, longest=200),
}


def rollout_of(size: str, quick: bool) -> Rollout:
    """The rollout of a model's size: `small` (the built-in model) or `real` (135M parameters)."""
    return (ROLLOUT_QUICK if quick else ROLLOUT)[size]


def rows_of(size: str, quick: bool) -> Rows:
    """The training batch of a model's size."""
    return (ROWS_QUICK if quick else ROWS)[size]

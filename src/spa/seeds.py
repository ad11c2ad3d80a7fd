"""Named random streams.

Every random number of a run comes from a stream derived from (base seed, purpose, indices). So a
single stage, step, group or episode can be replayed, and no sample depends on how work is batched
or distributed. There is no global random state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def stream_seed(base: int, purpose: str, *indices: int) -> int:
    """Return a 63-bit seed for the stream named by `purpose` and `indices`. It is the same on every
    machine and Python version."""
    # For example "10000/minibatch/3".
    key = "/".join([str(base), purpose, *map(str, indices)])
    # 63 bits fit into the signed integers of NumPy and parquet.
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


def stream(base: int, purpose: str, *indices: int) -> np.random.Generator:
    """Return a NumPy generator for the named stream."""
    return np.random.Generator(np.random.PCG64(stream_seed(base, purpose, *indices)))


def torch_stream(base: int, purpose: str, *indices: int) -> torch.Generator:
    """Return a CPU torch generator for the named stream."""
    import torch  # imported late: environments need only NumPy

    return torch.Generator().manual_seed(stream_seed(base, purpose, *indices))


def derange(values: Sequence[Hashable], rng: np.random.Generator) -> np.ndarray:
    """Return a random permutation p, int64 [n], with values[p[i]] != values[i] for as many i as
    possible.

    It starts from a uniform permutation. Then every i that got a value equal to its own swaps with
    a random j such that both get a different value. Rotating the sorted values would be simpler.
    But equal texts would then mostly get the same other text, which a model could learn.
    """
    known: dict[Hashable, int] = {}
    # Equal values get one code, so that the search below compares numbers.
    codes = np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)
    donors = rng.permutation(len(codes))
    for i in range(len(codes)):
        own = codes[i]
        if codes[donors[i]] != own:
            continue
        # Swap with a j whose own value and donor value both differ from i's value. Then i and j
        # both get a different value.
        partners = np.flatnonzero((codes != own) & (codes[donors] != own))
        if len(partners):
            j = partners[rng.integers(len(partners))]
            donors[i], donors[j] = donors[j], donors[i]
    return donors

"""Named random streams.

Every random number of a run comes from a stream derived from (base seed, purpose, indices), so that a stage, a step, a
group or a member can be replayed alone and no draw depends on how work is batched or distributed. There is no global
random state.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def stream_seed(base: int, purpose: str, *indices: int) -> int:
    """A 63-bit seed for the stream named by `purpose` and `indices`; the same on every machine and Python version."""
    key = "/".join([str(base), purpose, *map(str, indices)])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


def stream(base: int, purpose: str, *indices: int) -> np.random.Generator:
    """A NumPy generator for the named stream."""
    return np.random.Generator(np.random.PCG64(stream_seed(base, purpose, *indices)))


def torch_stream(base: int, purpose: str, *indices: int) -> torch.Generator:
    """A CPU torch generator for the named stream."""
    import torch  # environments draw with NumPy, and do not wait for it

    return torch.Generator().manual_seed(stream_seed(base, purpose, *indices))

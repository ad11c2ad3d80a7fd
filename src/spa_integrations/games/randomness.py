"""Isolation of libraries that sample from global generators: each game gets its own generators, and
the rest of the process is not affected."""

import random
import threading
from typing import Any

import numpy as np

_LOCK = threading.RLock()


class OwnRandomness:
    """Python's and NumPy's global generators, kept separately for one game. They are active only
    inside a `with` block.

    They are seeded by `seed`, and a deep copy continues the same sequence. Games in several threads
    wait for each other, since the generators belong to the process.
    """

    def __init__(self, seed: int) -> None:
        with _LOCK:
            # Seeding changes the global generators, so their state is restored below.
            outside = _state()
            random.seed(seed)
            # np.random.seed accepts at most 32 bits.
            np.random.seed(seed % 2**32)
            self.own = _state()
            _set_state(outside)

    def __enter__(self) -> None:
        _LOCK.acquire()
        self.outside = _state()
        _set_state(self.own)

    def __exit__(self, *_: object) -> None:
        self.own = _state()
        _set_state(self.outside)
        _LOCK.release()


def _state() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set_state(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])

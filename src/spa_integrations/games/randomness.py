"""Isolate libraries that sample from global generators. Each game gets its own generators, and the
rest of the process is not affected."""

import random
import threading
from typing import Any

import numpy as np

_LOCK = threading.RLock()


class OwnRandomness:
    """Context manager that replaces the states of Python's and NumPy's global generators by a
    game's own states.

    The states start from `seed`, and a deep copy continues the same sequence. Only one thread at a
    time can be inside the context, because all threads share the global generators.
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

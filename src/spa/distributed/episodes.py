"""Episodes on their way between ranks: the text as JSON, the arrays as bytes (a third of the size,
and of the time, of what a trajectory file holds)."""

from base64 import b64decode, b64encode
from dataclasses import replace
from typing import Any

import numpy as np

from spa.types import Episode

ARRAYS = {
    "token_ids": np.int32,
    "sampled": np.bool_,
    "logprobs": np.float32,
    "turn_index": np.int16,
}


def pack(episode: Episode) -> dict[str, Any]:
    """A JSON-ready dict; `unpack` restores an equal episode."""
    # The arrays are packed as base64 below, since JSON would write them number by number.
    bare: Any = replace(episode, **dict.fromkeys(ARRAYS))
    arrays = {name: getattr(episode, name) for name in ARRAYS}
    return bare.to_json() | {
        name: None if array is None else b64encode(array.tobytes()).decode()
        for name, array in arrays.items()
    }


def unpack(data: dict[str, Any]) -> Episode:
    """The inverse of `pack`."""
    # `frombuffer` returns a read-only array, hence the copy.
    arrays: dict[str, Any] = {
        name: None
        if data[name] is None
        else np.frombuffer(b64decode(data[name]), dtype=dtype).copy()
        for name, dtype in ARRAYS.items()
    }
    return replace(Episode.from_json(data | dict.fromkeys(ARRAYS)), **arrays)

"""Helpers that environments share: option checks, label tables, uniform random numbers, and seeds
of `reset`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np

from spa.envs.base import StateText
from spa.errors import ConfigError, nearest

STATE_TEXTS: tuple[StateText, ...] = ("grid", "coords", "grid_and_coords")
RENDER_MODES: dict[str, StateText] = {
    "text": "grid",
    "text_with_coordinates": "grid_and_coords",
    # An image replaces the text in prompts; world-model data and reports keep the grid.
    "rgb_array": "grid",
}
"""Render mode of the original -> the state text that it shows."""


def require_int(env: str, name: str, value: object, low: int, high: int) -> int:
    """Return `value` as an int if it is an integer in [low, high]; raise ConfigError otherwise."""
    if (
        # bool is a subclass of int.
        isinstance(value, bool)
        or not isinstance(value, int | np.integer)
        or not low <= value <= high
    ):
        raise ConfigError(
            f"{env}: option {name!r} must be an integer from {low} to {high}, got {value!r}"
        )
    return int(value)


def require_rate(env: str, name: str, value: object, low: float = 0.0, high: float = 1.0) -> float:
    """Return `value` as a float if it is a number in [low, high]; raise ConfigError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(
            f"{env}: option {name!r} must be a number from {low:g} to {high:g}, got {value!r}"
        )
    return float(value)


def require_bool(env: str, name: str, value: object) -> bool:
    """Return `value` if it is a boolean; raise ConfigError otherwise."""
    if not isinstance(value, bool):
        raise ConfigError(f"{env}: option {name!r} must be true or false, got {value!r}")
    return value


def require_choice(env: str, name: str, value: object, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`; otherwise raise ConfigError that suggests the
    nearest one."""
    choices = list(choices)
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{env}: option {name!r} cannot be {value!r}; {nearest(value, choices)}")
    return value


def choose_state_text(
    env: str, state_text: object, render_mode: object, modes: Iterable[str]
) -> StateText:
    """Return the state text of an instance: `state_text` if given, else the one that `render_mode`
    implies."""
    require_choice(env, "render_mode", render_mode, modes)
    if state_text is None:
        return RENDER_MODES[str(render_mode)]
    require_choice(env, "state_text", state_text, STATE_TEXTS)
    return state_text  # type: ignore[return-value]


def read_table(env: str, name: str, table: object, default: Mapping[int, str]) -> dict[int, str]:
    """Return `default` (id -> text) updated with the entries of the user's `table`, whose ids may
    be integers or strings of digits.

    Raises ConfigError on an unknown id, an empty text, or a text used twice.
    """
    merged = dict(default)
    if table is None:
        return merged
    if not isinstance(table, Mapping):
        raise ConfigError(f"{env}: option {name!r} must map integer ids to strings, got {table!r}")
    for key, text in table.items():
        # In JSON, and with quoted keys in YAML, ids are strings.
        identity = (
            int(key) if isinstance(key, int) or (isinstance(key, str) and key.isdecimal()) else -1
        )
        if identity not in default:
            raise ConfigError(
                f"{env}: option {name!r} has the unknown id {key!r}; valid ids: "
                f"{', '.join(map(str, default))}"
            )
        if not isinstance(text, str) or not text.strip():
            raise ConfigError(
                f"{env}: option {name!r} needs a string that is not empty for id {key}, got "
                f"{text!r}"
            )
        merged[identity] = text
    if len({text.strip() for text in merged.values()}) < len(merged):
        raise ConfigError(
            f"{env}: option {name!r} uses the same string for two ids; make them different: "
            f"{', '.join(merged.values())}"
        )
    return merged


def read_symbols(
    env: str, lookup: object, vocab: object, symbols: Mapping[int, str], meanings: Mapping[int, str]
) -> tuple[dict[int, str], dict[str, str]]:
    """Apply the options `grid_lookup` and `grid_vocab` to the defaults `symbols` and `meanings`.

    Returns the symbols by cell id, and the legend (symbol -> meaning). Raises ConfigError for
    invalid options.
    """
    table = read_table(env, "grid_lookup", lookup, symbols)
    if any(len(symbol) != 1 for symbol in table.values()):
        raise ConfigError(
            f"{env}: option 'grid_lookup' must map cell ids to single characters, got {lookup!r}"
        )
    legend = {table[identity]: meanings[identity] for identity in table}
    if vocab is not None:
        if not isinstance(vocab, Mapping):
            raise ConfigError(
                f"{env}: option 'grid_vocab' must map symbols to meanings, got {vocab!r}"
            )
        for symbol, meaning in vocab.items():
            if symbol not in legend:
                raise ConfigError(
                    f"{env}: option 'grid_vocab' explains the symbol {symbol!r}, which is "
                    "not in 'grid_lookup'; use a symbol from 'grid_lookup'"
                )
            legend[symbol] = str(meaning)
    return table, legend


def read_actions(
    env: str, lookup: object, default: Mapping[int, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Apply the option `action_lookup`. Returns the action labels in the order of their ids, and
    the direction of each label: a value of `default` in lower case.

    A label that names a direction means that direction, regardless of its id. Other labels, such as
    "North", mean the default direction of their id. Raises ConfigError if two labels are equal or
    mean the same direction.
    """
    table = read_table(env, "action_lookup", lookup, default)
    labels = tuple(table[identity].strip() for identity in sorted(table))
    known = {name.lower() for name in default.values()}
    means = tuple(
        # In the original the id alone decides, so with permuted labels a move goes in another
        # direction than its label names.
        label.lower() if label.lower() in known else default[identity].lower()
        for identity, label in zip(sorted(table), labels, strict=True)
    )
    if len(set(means)) < len(means) or len({label.lower() for label in labels}) < len(labels):
        raise ConfigError(
            f"{env}: option 'action_lookup' has two labels that are equal or mean the same "
            f"direction; rename one of them: {', '.join(labels)}"
        )
    return labels, means


def uniforms(rng: np.random.Generator, block: int = 64) -> Callable[[], float]:
    """Return a function that returns uniform numbers in [0, 1) from `rng`. They are sampled in
    blocks, because single samples are slow.

    Puzzles are generated only from these numbers, because the doubles of a bit generator are the
    same in every NumPy version. NumPy does not guarantee this for `integers`, `choice` or
    `shuffle`.
    """

    def numbers() -> Iterable[float]:
        while True:
            # Converting a whole block to Python floats is faster than sampling NumPy scalars one by
            # one.
            yield from rng.random(block).tolist()

    return iter(numbers()).__next__


class Noise:
    """Callable that returns uniform numbers in [0, 1) from `rng`, in the same sequence as
    `uniforms`. Unlike `uniforms`, it can be deep-copied, and the copy continues the sequence."""

    def __init__(self, rng: np.random.Generator, block: int = 64) -> None:
        self._rng = rng
        self._block = block
        self._buffer: list[float] = []

    def __call__(self) -> float:
        """Return the next number."""
        if not self._buffer:
            # The block is reversed, because `pop` takes from the end.
            self._buffer = self._rng.random(self._block)[::-1].tolist()
        return self._buffer.pop()


def shuffled(items: Iterable[Any], uniform: Callable[[], float]) -> list[Any]:
    """Return a uniformly shuffled copy of `items` (Fisher-Yates), with random numbers from
    `uniform`."""
    out = list(items)
    for last in range(len(out) - 1, 0, -1):
        other = int(uniform() * (last + 1))
        out[last], out[other] = out[other], out[last]
    return out


def reset_seeds(
    env: gymnasium.Env[Any, Any], seed: int | None, options: Mapping[str, Any] | None
) -> tuple[int, int]:
    """Call Gymnasium's base `reset`. Returns the puzzle seed, and the noise seed (by default the
    puzzle seed)."""
    gymnasium.Env.reset(env, seed=seed)
    # Without a seed, Gymnasium keeps its generator, from which the puzzle seed is sampled.
    puzzle = int(env.np_random.integers(2**31)) if seed is None else int(seed)
    noise = (options or {}).get("noise_seed")
    return puzzle, puzzle if noise is None else int(noise)

"""Bridges: environments of other libraries as they are, by the name `library:task`.

A bridge is one file here and one row in `BRIDGES`. The library is imported when a task of it is
first made.
"""

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from spa.envs.bridges.randomness import OwnRandomness
from spa.errors import ConfigError
from spa.install import install_hint


@dataclass(frozen=True, slots=True)
class Bridge:
    """Where a bridge's class is, and what it needs."""

    path: str  # module:Class of the TextEnv; its first argument is the task
    package: str  # what is imported
    extra: str | None  # the extra of this package that installs it; None if it always is there
    says: str  # one line for people


BRIDGES: dict[str, Bridge] = {
    "gem": Bridge("spa.envs.bridges.gem:Gem", "gem", "gem", "language games with boards"),
    "gymnasium": Bridge(
        "spa.envs.bridges.gymnasium:GymnasiumGame",
        "gymnasium",
        None,
        "Gymnasium environments of text or few values",
    ),
    "pettingzoo": Bridge(
        "spa.envs.bridges.pettingzoo:PettingZooGame",
        "pettingzoo",
        "pettingzoo",
        "board games of two players",
    ),
    "reasoning_gym": Bridge(
        "spa.envs.bridges.reasoning_gym:ReasoningGym",
        "reasoning_gym",
        "reasoning-gym",
        "questions with a scorer",
    ),
    "textarena": Bridge(
        "spa.envs.bridges.textarena:TextArena",
        "textarena",
        "textarena",
        "games of one or two players",
    ),
    "textworld": Bridge(
        "spa.envs.bridges.textworld:TextWorldGame",
        "textworld",
        "textworld",
        "text adventures with facts",
    ),
}


def load_package(bridge: str, module: str | None = None) -> Any:
    """The library behind a bridge, or one of its modules; raises ConfigError that names the extra
    to install."""
    row = BRIDGES[bridge]
    try:
        # some draw, or set up everybody's logging, while they are imported
        with OwnRandomness(0), _own_logging():
            return importlib.import_module(module or row.package)
    except ImportError as error:
        extra = install_hint(row.extra) if row.extra else f"pip install {row.package}"
        raise ConfigError(
            f"env_type {bridge + ':…'!r} needs the package {row.package}: {extra} ({type(error).__name__}: {error})"
        ) from error


@contextmanager
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    try:
        yield
    finally:
        root.setLevel(before[0])
        root.handlers[:] = before[1]


def list_tasks(bridge: str) -> tuple[str, ...]:
    """The tasks of a bridge by name, sorted. Raises ConfigError if its library is missing."""
    module, _, name = BRIDGES[bridge].path.partition(":")
    return tuple(sorted(getattr(importlib.import_module(module), name).tasks()))

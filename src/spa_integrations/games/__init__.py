"""Unmodified games of other libraries, which a configuration names as `library:task`.

To integrate a library, add a module here, a record in `spa_integrations.libraries` and an entry
point in pyproject.toml. A library is imported only when one of its tasks is first used.
"""

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spa.envs.registry import Library
from spa.errors import ConfigError
from spa.install import install_hint
from spa.plugins import load_plugin
from spa_integrations.games.randomness import OwnRandomness


def load_package(bridge: str, module: str | None = None) -> Any:
    """Import the game library that is registered as `bridge`, or its module `module`. If the
    library is not installed, raises ConfigError with the command that installs it."""
    example: Library = load_plugin("libraries", bridge)
    try:
        # Some libraries sample random numbers or configure the root logger when they are imported.
        with OwnRandomness(0), _own_logging():
            return importlib.import_module(module or example.package)
    except ImportError as error:
        extra = install_hint(example.extra) if example.extra else f"pip install {example.package}"
        raise ConfigError(
            f"env_type {bridge + ':…'!r} needs the package {example.package}: {extra} ({type(error).__name__}: {error})"
        ) from error


@contextmanager
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    try:
        yield
    finally:
        # Restore level and handlers. If the library has called `basicConfig`, every log line of the
        # run would otherwise appear twice.
        root.setLevel(before[0])
        root.handlers[:] = before[1]

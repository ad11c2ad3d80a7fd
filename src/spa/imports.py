"""Import user code by names of the form `package.module:name`."""

import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable
from typing import Any

from spa.errors import ConfigError


def find_modules_beside_user() -> None:
    """Let modules of the working folder be imported, as with `python -m`; installed ones come
    first."""
    find_modules_in(os.getcwd())


def find_modules_in(folder: str | os.PathLike[str]) -> None:
    """Let modules of a folder be imported, after all that can be imported already."""
    path = os.path.abspath(folder)
    if path not in sys.path:
        # At the end: a file of the user must not hide an installed module of its name.
        sys.path.append(path)


def load_setting(key: str, name: str, shipped: Iterable[str] = ()) -> Any:
    """Load the object `name`, the value of `key`, from an installed module or one in the working
    directory.

    Raises ConfigError, which lists the `shipped` values, if it is no `package.module:name` or there
    is nothing there.
    """
    if ":" not in name:
        known = ", ".join(shipped)
        raise ConfigError(
            f"{key}: {name!r} is unknown; use {known}, or your own as 'package.module:name'"
        )
    find_modules_beside_user()
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{key}: cannot load {name!r} ({error}); write 'package.module:name' for a module that can be "
            "imported from this folder"
        ) from error


def settings_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The settings that a user's function asks for: its keyword-only parameters."""
    return tuple(
        p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY
    )

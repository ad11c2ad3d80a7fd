"""What users bring: names of the form `package.module:name`."""

import os
import pkgutil
import sys
from typing import Any

from spa.errors import ConfigError


def find_modules_beside_user() -> None:
    """Let modules of the working folder be imported, as with `python -m`; installed ones come first."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def load_own(name: str) -> Any:
    """What `package.module:name` names, in an installed module or one beside the user.

    Raises ImportError, AttributeError or ValueError if there is nothing of that name.
    """
    find_modules_beside_user()
    return pkgutil.resolve_name(name)


def load_setting(key: str, name: str) -> Any:
    """What the value `name` of the key `key` names. Raises ConfigError if there is nothing of that name."""
    try:
        return load_own(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{key}: cannot load {name!r} ({error}); the form is 'package.module:name', importable from here"
        ) from error

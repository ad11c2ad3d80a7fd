"""Environment types by name. A class is imported when its type is first used."""

import difflib
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from spa.envs.base import TextEnv
from spa.envs.limits import EnvFault
from spa.errors import ConfigError, SpaError, nearest
from spa.plugins import find_modules_beside_user, load_plugin, plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A third-party library of games, registered by an installed package. Its games are named
    `library:task`."""

    path: str  # module:Class of the TextEnv; its first argument is the task
    package: str  # name of the package to import
    extra: str | None  # extra of spa that installs the package; None if it is always installed
    summary: str  # one line for listings


ENVS: dict[str, str] = {
    "frozen_lake": "spa.envs.frozen_lake:FrozenLake",
}


def env_types() -> list[str]:
    """Return the names of all environment types: the shipped types, then the types that other
    packages register."""
    return list(dict.fromkeys((*ENVS, *plugins("envs"))))


def libraries() -> list[str]:
    """Return the names of the registered third-party libraries of games."""
    return list(plugins("libraries"))


def library_named(name: str) -> Library:
    """Return the registry entry of a library named in `libraries`, without importing the
    library."""
    return load_plugin("libraries", name)


def list_tasks(library: str) -> tuple[str, ...]:
    """Return the names of a library's tasks, sorted. Raises ConfigError if the library is not
    installed."""
    module, _, name = library_named(library).path.partition(":")
    return tuple(sorted(getattr(importlib.import_module(module), name).tasks()))


def env_class(env_type: str) -> type[TextEnv]:
    """Import the class of an environment type. The type is a name from `env_types`, a library's
    `library:task`, or an import path `my_pkg.env:MyEnv`.

    Raises ConfigError if there is no such type, module or class, or if it is not a TextEnv.
    """
    if not isinstance(env_type, str) or (env_type not in env_types() and ":" not in env_type):
        raise ConfigError(
            f"env_type {env_type!r} is unknown; {nearest(env_type, env_types())}, or give an "
            "import path 'package.module:Class'"
        )
    # A plugin cannot replace a shipped environment of the same name.
    if env_type not in ENVS and env_type in plugins("envs"):
        return load_plugin("envs", env_type)
    library, _, task = env_type.partition(":")
    # The part before the colon is a library in `textarena:TASK` and a module in `my_pkg.env:MyEnv`.
    if library in libraries() and not task:
        raise ConfigError(
            f"env_type {env_type!r} names a library without a task; `spa env list {library}` "
            "lists the library's tasks"
        )
    shipped = library_named(library).path if library in libraries() else ENVS.get(env_type)
    module_name, _, class_name = (shipped or env_type).partition(":")
    if shipped is None:
        find_modules_beside_user()
    try:
        module = importlib.import_module(module_name)
    # A SpaError already says what to install or set.
    except SpaError:
        raise
    except Exception as error:
        problem = f"env_type {env_type!r}: cannot import {module_name!r}: {_error_text(error)}"
        # Suggest libraries only if the requested module itself is missing, not one of its imports.
        # A name without dots may be a misspelt library.
        missing = (
            isinstance(error, ModuleNotFoundError)
            and error.name == module_name
            and "." not in module_name
        )
        raise ConfigError(
            problem + _other_libraries(module_name) if missing else problem
        ) from error
    kind = getattr(module, class_name, None)
    if not (inspect.isclass(kind) and issubclass(kind, TextEnv)):
        raise ConfigError(
            f"env_type {env_type!r}: {module_name!r} has no TextEnv named {class_name!r}{_its_games(module)}"
            f"{_gymnasium_id(env_type)}"
        )
    return kind


def _error_text(error: Exception) -> str:
    return (
        str(error) if isinstance(error, ModuleNotFoundError) else f"{type(error).__name__}: {error}"
    )


def _other_libraries(name: str) -> str:
    close = difflib.get_close_matches(name, libraries(), n=1)
    hint = (
        f"did you mean '{close[0]}:TASK'?"
        if close
        else f"the supported libraries of games are {', '.join(libraries())}"
    )
    return (
        f". {hint[0].upper()}{hint[1:]} (`spa env list --libraries`); to use your own class, "
        "give its import path 'module:Class'"
    )


def _its_games(module: ModuleType) -> str:
    """Return an error hint that lists the games of a module. The hint is for names that are not
    classes of the module, such as the name of a task."""
    own = [
        name
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__
    ]
    games = [name for name in own if issubclass(getattr(module, name), TextEnv)]
    if not games:
        return ""
    return (
        f"; the module has {', '.join(games)}. To choose which game your own class plays, set an "
        "option in env_config, not env_type"
    )


def _gymnasium_id(env_type: str) -> str:
    """Return an error hint for a Gymnasium id such as `my_games:Maze-v0`; "" if the name may be a
    class."""
    class_name = env_type.partition(":")[2]
    return "" if class_name.isidentifier() else f"; write a Gymnasium id as 'gymnasium:{env_type}'"


def make_env(env_type: str, env_config: Mapping[str, Any] | None = None) -> TextEnv:
    """Create an environment of the type `env_type` with the options `env_config`.

    Raises ConfigError for an invalid value or an unknown option, and suggests the nearest valid
    option. If the class raises any other error, raises EnvFault, which names the class and its
    options.
    """
    kind = env_class(env_type)
    options = {str(name): value for name, value in (env_config or {}).items()}
    library, _, task = env_type.partition(":")
    if library in libraries():
        # Only the library can check its own options.
        return _made(env_type, kind, {"task": task, **options})
    parameters = inspect.signature(kind).parameters.values()
    # A class with **kwargs checks its options itself.
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        valid = [parameter.name for parameter in parameters]
        unknown = [name for name in options if name not in valid]
        if unknown:
            hints = "; ".join(
                f"the option {name!r} is unknown; {nearest(name, valid)}" for name in unknown
            )
            raise ConfigError(f"env_config of {env_type!r}: {hints}")
    return _made(env_type, kind, options)


def _made(env_type: str, kind: type[TextEnv], options: dict[str, Any]) -> TextEnv:
    try:
        return kind(**options)
    except (SpaError, EnvFault):
        raise
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in options.items()) or "no options"
        raise EnvFault(
            f"env_type {env_type!r}: the class {kind.__name__} with {given} raises "
            f"{type(error).__name__}: {error}"
        ) from error

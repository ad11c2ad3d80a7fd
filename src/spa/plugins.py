"""Load objects that other packages register by entry points, and user code named as
`package.module:name`.

A package registers objects by name in the groups `spa.commands`, `spa.envs`, `spa.libraries`,
`spa.engines`, `spa.formats`, `spa.policies`, `spa.methods` and `spa.trackers`. Listing the names
imports nothing. A module is imported when its name is used. The other packages of this repository
use the same mechanism, with additional groups. These are `spa.api` (functions behind `import spa`),
`spa.estimates` (estimates of a run's cost), `spa.launchers`, `spa.measurements` (measurements of
`spa eval` besides rollouts) and `spa.translations` (settings and files of other projects).
"""

import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from pkgutil import iter_modules
from typing import Any

from spa.errors import ConfigError
from spa.install import DISTRIBUTION


@cache
def plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of the group `spa.GROUP` by name, sorted."""
    known: dict[str, EntryPoint] = {}
    # Sort the entry points, because the order of installed packages depends on the machine.
    for point in sorted(entry_points(group=f"spa.{group}"), key=lambda point: point.name):
        # If two entry points have the same name, the one of this distribution is kept.
        if point.name not in known or (point.dist and point.dist.name == DISTRIBUTION):
            known[point.name] = point
    return known


def load_plugin(group: str, name: str) -> Any:
    """Import the object that another package registers as `name` in a group.

    Raises ConfigError that names the package if its module cannot be imported.
    """
    point = plugins(group)[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        package = point.dist.name if point.dist else "unknown"
        raise ConfigError(
            f"{name!r} of the package {package} (entry point spa.{group}) cannot be imported from "
            f"{point.value!r}: {error}. Reinstall or remove that package."
        ) from error


def translated(hook: str, *arguments: Any) -> list[Any]:
    """Call the function `hook` of every registered translation, and concatenate the lists that they
    return. A translation handles the settings and files of another project."""
    return [
        item
        for name in plugins("translations")
        for item in getattr(load_plugin("translations", name), hook)(*arguments)
    ]


def trackers() -> tuple[str, ...]:
    """Return the names that `trainer.logger` can list: the console, and the trackers that packages
    register."""
    return ("console", *plugins("trackers"))


LAST_METHODS = ("paw", "replay")
"""Methods to apply last: PaW scales the weights that other methods set, and replay appends rows
that are not episodes."""


@cache
def defined_in(package: str, attribute: str) -> Mapping[str, Any]:
    """Map file names of `spa.PACKAGE`, in alphabetical order, to the objects that these files
    define as `attribute`. Skips files without it."""
    folder = import_module(f"spa.{package}")
    names = sorted(file.name for file in iter_modules(folder.__path__))
    modules = {name: import_module(f"spa.{package}.{name}") for name in names}
    return {
        name: getattr(module, attribute)
        for name, module in modules.items()
        if hasattr(module, attribute)
    }


@cache
def defined_by_methods(attribute: str) -> Mapping[str, Any]:
    """Map file names of `spa.methods` to the objects that these files define as `attribute`. The
    order is alphabetical, except that `LAST_METHODS` come last."""
    found = defined_in("methods", attribute)
    return dict(sorted(found.items(), key=lambda item: item[0] in LAST_METHODS))


@cache
def response_formats() -> Mapping[str, Any]:
    """Return all response formats by name, in alphabetical order, including the formats that other
    packages register. Raises ConfigError if two have the same name."""
    others = [load_plugin("formats", name) for name in plugins("formats")]
    return by_unique_name([*defined_in("formats", "FORMAT").values(), *others])


def by_unique_name(formats: Iterable[Any]) -> Mapping[str, Any]:
    """Return response formats by name, in alphabetical order. Raises ConfigError if two have the
    same name."""
    ordered = sorted(formats, key=lambda each: each.name)
    for first, second in pairwise(ordered):
        if first.name == second.name:
            raise ConfigError(
                f"{type(first).__module__} and {type(second).__module__} both define a response format "
                f"with name = {first.name!r}; rename one of them"
            )
    return {each.name: each for each in ordered}


@cache
def example_sources() -> Sequence[Any]:
    """Return the sources of examples (`spa.examples`) in ascending `order`."""
    return sorted(defined_in("examples", "SOURCE").values(), key=lambda source: source.order)


def example_source(cfg: Any) -> Any:
    """Return the first `ExampleSource` whose `makes` accepts the configuration."""
    return next(source for source in example_sources() if source.makes(cfg))


def find_modules_beside_user() -> None:
    """Make modules in the working directory importable, as with `python -m`; installed modules come
    first."""
    find_modules_in(os.getcwd())


def find_modules_in(folder: str | os.PathLike[str]) -> None:
    """Make the modules of a folder importable; modules that are already importable come first."""
    path = os.path.abspath(folder)
    if path not in sys.path:
        # Append instead of prepending, so that a user's file does not hide an installed module of
        # the same name.
        sys.path.append(path)


def load_setting(key: str, name: str, shipped: Iterable[str] = ()) -> Any:
    """Import the object that a setting names, from an installed module or from one in the working
    directory. `name` is the value of the setting `key`.

    Raises ConfigError if `name` cannot be imported, or if it is not of the form
    `package.module:name`. In the second case, the message lists the `shipped` values.
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
    """Return the names of the settings that a user's function takes, which are its keyword-only
    parameters."""
    return tuple(
        p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY
    )

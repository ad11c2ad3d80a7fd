"""What other packages add to spa: the entry points of their metadata.

A package registers objects by name in the groups `spa.commands`, `spa.envs`, `spa.engines`,
`spa.policies` and `spa.methods`. Names are listed without importing anything; a module is imported when its name is
used. The siblings of this package, `spa_bench` and `spa_integrations`, use the same door.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from spa.errors import ConfigError


@cache
def plugins(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of the group `spa.GROUP` by name, sorted."""
    found = entry_points(group=f"spa.{group}")
    # Sorted, since the order of installed packages depends on the machine.
    return {point.name: point for point in sorted(found, key=lambda point: point.name)}


def load_plugin(group: str, name: str) -> Any:
    """Import the object that another package registers as `name`.

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

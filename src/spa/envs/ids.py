"""Gymnasium ids of the environments (`spa/FrozenLake-v0` and so on), registered when this module is
imported.

    gymnasium.make("spa.envs.ids:spa/FrozenLake-v0", is_slippery=False)

Keyword arguments are the environment's options. Source: https://gymnasium.farama.org/api/registry/
"""

import gymnasium

from spa.envs.registry import ENVS
from spa.plugins import plugins

_PATHS = (*ENVS.values(), *(point.value for point in plugins("envs").values()))
IDS: dict[str, str] = {f"spa/{path.rpartition(':')[2]}-v0": path for path in _PATHS}
"""Gymnasium id -> import path `module:Class`."""

for _id, _path in IDS.items():
    # Gymnasium warns if an id is registered twice.
    if _id not in gymnasium.registry:
        gymnasium.register(_id, entry_point=_path)

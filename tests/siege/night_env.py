"""The environment of the overnight simulation: it reads in a file beside the run where it goes wrong, so that this is no
part of the run's configuration. Light, because processes of environments import it."""

import json
from pathlib import Path
from typing import Any

from faulty_env import Faulty

PLAN = "faults.json"
"""{"puzzles": {puzzle seed: kind of fault}, "episodes": [ids of episodes that the engine does not answer]}"""


def read_plan() -> dict[str, Any]:
    """What goes wrong in the run of the working folder."""
    return json.loads(Path(PLAN).read_text())


class Night(Faulty):
    """The lake, with a fault at each planned puzzle."""

    def goes_wrong(self, seed: int | None) -> bool:
        self.fault_kind = read_plan()["puzzles"].get(str(seed), "")
        return bool(self.fault_kind)

"""Count the Sokoban rooms of `reference.py` that are a state of the rooms from which its learners learn,
up to the eight symmetries.

    python benchmarks/recurring_rooms.py OUTPUT

OUTPUT is a JSON file, with 1 for each room that recurs.
"""

import json
import sys
from pathlib import Path

from reference import BOARDS, LABELS

from spa.envs.registry import make_env
from spa.rollout.loop import puzzle_hash
from spa_bench.reference.labels import with_symmetries
from spa_bench.reference.sokoban import label_all_rooms
from spa_games.sokoban import Sokoban

found = {}
for name in ("sokoban-6x6", "sokoban-6x6-hard"):
    env = make_env("sokoban", BOARDS[name].options)
    assert isinstance(env, Sokoban)
    grids = []
    hashes = []
    for seed in BOARDS[name].seeds:
        env.reset(seed=seed)
        grids.append(env.state_text("grid"))
        hashes.append(puzzle_hash(env))
    states = label_all_rooms(env, LABELS, seed=0, held_out=hashes)
    known = {label.grid for label in with_symmetries(states)}
    found[name] = {"states": len(states), "recurs": [int(grid in known) for grid in grids]}
Path(sys.argv[1]).write_text(json.dumps(found) + "\n")

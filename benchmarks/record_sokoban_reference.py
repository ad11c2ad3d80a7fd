"""Record what the original's room generator makes, as the reference of tests/envs/test_sokoban_rooms.py.

    python benchmarks/record_sokoban_reference.py UTILS.py > tests/golden/sokoban_reference.json

UTILS.py is `ragen/env/sokoban/utils.py` of github.com/mll-lab-nu/RAGEN (commit 893377b), without its two matplotlib
imports. It needs NumPy only. Nothing of this project is used, so that the reference is independent of it.
"""

import importlib.util
import json
import random
import sys
from collections import Counter

import numpy as np

PUZZLES = 6000
CASES = [(6, 6, 1, 300)] * 25 + [(6, 6, 2, 30)] * 25 + [(10, 10, 2, 300)] * 6


def grid(structure, state) -> str:
    """Standard symbols: # wall, _ floor, O target, X box, P player."""
    cells = np.where(state == 1, structure, state)
    return "\n".join("".join("#_OXXP"[int(cell)] for cell in row) for row in cells)


def distribution(original) -> dict:
    lengths, floors, solved, seed = Counter(), Counter(), 0, 0
    while solved < PUZZLES:
        random.seed(seed)
        np.random.seed(seed)
        seed += 1
        try:
            structure, state, _, _ = original.generate_room(
                dim=(6, 6), num_steps=20, num_boxes=1, search_depth=300
            )
        except (RuntimeError, RuntimeWarning):
            continue  # the original draws again, with another seed
        solved += 1
        lengths[len(original.get_shortest_action_path(structure, state))] += 1
        floors[int((structure > 0).sum())] += 1
    return {
        "optimal_steps": dict(sorted(lengths.items())),
        "floor_cells": dict(sorted(floors.items())),
    }


def backwards_play(original) -> list[dict]:
    """Rooms before and after the original's backwards play."""
    out, seed = [], 0
    for rows, cols, boxes, depth in CASES:
        room = None
        while room is None:
            random.seed(seed)
            np.random.seed(seed)
            seed += 1
            level = original.room_topology_generation((rows, cols), 0.35, int(1.7 * (rows + cols)))
            if (level == 1).sum() > boxes + 1:
                room = original.place_boxes_and_player(level, num_boxes=boxes, second_player=False)
        structure = room.copy()
        structure[structure == 5] = 1
        state = room.copy()
        state[state == 2] = 4
        before = grid(structure, room)
        after, _, _ = original.reverse_playing(state, structure, depth)
        after = np.where(after == 3, 4, after)
        out.append({"search_depth": depth, "before": before, "after": grid(structure, after)})
    return out


def main(path: str) -> None:
    spec = importlib.util.spec_from_file_location("original", path)
    original = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(original)
    sys.setrecursionlimit(10_000)
    made = "benchmarks/record_sokoban_reference.py with RAGEN's ragen/env/sokoban/utils.py at commit 893377b"
    record = {
        "made_by": made,
        "puzzles": PUZZLES,
        **distribution(original),
        "backwards_play": backwards_play(original),
    }
    print(json.dumps(record, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main(sys.argv[1])

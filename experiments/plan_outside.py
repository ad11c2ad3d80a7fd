"""Success of planning with a model of single moves, outside the model's responses.

    python experiments/plan_outside.py PRESET CHECKPOINT OUTPUT [KEY=VALUE...]

CHECKPOINT was trained on single moves, as in `search_model`. It predicts every move of every state
once. Before each action, a program searches these predictions breadth first, or looks one action
ahead, from the true state. Look-ahead reads the distance to the goal from a true copy of the
predicted state; it avoids predictions that no copy has. A puzzle is lost if no path is found, or if
one answer for a state is unreadable.

OUTPUT, a JSON file, gets whether each puzzle is won, and the share of right moves in all states that
the start can lead to: of the cells alone (`state_right`), and of the cells and the letters on the way
(`move_right`). The puzzles are the 256 development puzzles from seed 300,000, as in
`learned_world.sh`. For games with few states.
"""

import json
import sys
from collections.abc import Iterable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from spa.config.load import load_config
from spa.envs.reference import policy_success
from spa.examples.search import make_dynamics
from spa.formats.search import Successor, state_of
from spa.models.precision import precision_of, with_precision
from spa.planning.dynamics import LearnedMoves, Puzzle, reachable
from spa.recipes import setup
from spa_author.measure import Plans, puzzle_at_start
from spa_sweeps.methods import method

preset, checkpoint, output = sys.argv[1:4]
settings = (
    *method("search_model").overrides,
    f"model_path={checkpoint}",
    "seed.val=300000",
    "es_manager.val.env_groups=256",
    "es_manager.val.group_size=1",
    *sys.argv[4:],
)
cfg = load_config(preset, settings)
cfg = with_precision(cfg, precision_of(cfg))
moves = make_dynamics(cfg)
assert isinstance(moves, LearnedMoves)
worker = setup.make_worker(cfg, None, mode="base")
puzzles = list[Puzzle]()
for number, spec in enumerate(
    setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0)
):
    look = worker.peek_reset(spec)
    assert look is not None
    puzzles.append(puzzle_at_start(cfg, number, spec, look))
limits = [cfg.custom_envs[puzzle.spec.tag].max_actions_per_traj for puzzle in puzzles]
# One call for all states, because few large batches are faster than many small ones.
asked = [(puzzle, key) for puzzle in puzzles for key in puzzle.true]
predicted = moves.expand(asked)
reachable(puzzles, limits, moves)
rows = list[dict[str, Any]]()
for puzzle, limit in zip(puzzles, limits, strict=True):
    plans = Plans(moves, puzzle, inf)
    play = partial(policy_success, limit=limit, rng=puzzle.rng)
    rows.append(
        {
            "puzzle_hash": puzzle.puzzle_hash,
            "search": bool(play(puzzle.env.clone(), plans.search)),
            "look_ahead": bool(play(puzzle.env.clone(), plans.look_ahead)),
        }
    )


def cells(moves: Iterable[Successor]) -> set[tuple[str, str]]:
    """Each action with the cell that it leads to."""
    return {(action, state_of(target)) for action, target, _ in moves}


total = sum(len(puzzle.true[key]) for puzzle, key in asked)
answers = [
    (puzzle.true[key], found or ()) for (puzzle, key), found in zip(asked, predicted, strict=True)
]
result = {
    "preset": preset,
    "settings": settings,
    "moves": total,
    "move_right": round(sum(len({*true} & {*found}) for true, found in answers) / total, 4),
    "state_right": round(
        sum(len(cells(true) & cells(found)) for true, found in answers) / total, 4
    ),
    **{
        name: round(sum(row[name] for row in rows) / len(rows), 4)
        for name in ("search", "look_ahead")
    },
    "puzzles": rows,
}
Path(output).write_text(json.dumps(result), encoding="utf-8")

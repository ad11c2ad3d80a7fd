"""Success of planning with a model of single moves, outside the model's responses.

    python experiments/plan_outside.py PRESET CHECKPOINT OUTPUT [KEY=VALUE...]

CHECKPOINT was trained on single moves, as in `search_model`. It predicts every move of every state once. In each
turn, a program searches these predictions breadth first, or looks one action ahead, and plays the first action. OUTPUT,
a JSON file, gets the accuracy of the moves in the states that the start can lead to, and whether each puzzle is won. A
state with one unreadable answer has no predictions.
"""

import json
import sys
from functools import partial
from math import inf
from pathlib import Path

import torch

from spa.config.load import load_config
from spa.engines.local import local_engine
from spa.envs.reference import policy_success
from spa.formats.search import explore
from spa.models.build import load_actor
from spa.models.precision import precision_of, with_precision
from spa.planning.dynamics import LearnedMoves, Puzzle, reachable
from spa.recipes import setup
from spa.seeds import stream
from spa_author.measure import Plans
from spa_sweeps.methods import method

preset, checkpoint, output = sys.argv[1:4]
cfg = load_config(
    preset, [*method("search_model").overrides, f"model_path={checkpoint}", *sys.argv[4:]]
)
cfg = with_precision(cfg, precision_of(cfg))
device = torch.device("cpu")
model, template = load_actor(cfg, checkpoint, device)
moves = LearnedMoves(local_engine(cfg, model.eval(), template, device), template)
worker = setup.make_worker(cfg, None, mode="base")
puzzles = list[Puzzle]()
for number, spec in enumerate(
    setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0)
):
    look = worker.peek_reset(spec)
    assert look is not None
    true, copies = explore(look.env)
    puzzles.append(
        Puzzle(
            number=number,
            spec=spec,
            puzzle_hash=look.hash,
            env=look.env,
            true=true,
            copies=copies,
            text=look.env.state_text(cfg.state_text),
            turn=1,
            rng=stream(cfg.seed.val, "plan_outside", number),
        )
    )
limits = [cfg.custom_envs[puzzle.spec.tag].max_actions_per_traj for puzzle in puzzles]
# One call for all states, and one for each further action, because few large batches are faster than many small ones.
asked = [(puzzle, key) for puzzle in puzzles for key in puzzle.true]
with torch.inference_mode():
    predicted = moves.expand(asked)
    reachable(puzzles, limits, moves)
    rows = list[dict[str, object]]()
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
total = sum(len(puzzle.true[key]) for puzzle, key in asked)
right = sum(
    len(set(puzzle.true[key]) & set(found or ()))
    for (puzzle, key), found in zip(asked, predicted, strict=True)
)
result = {
    "moves": total,
    "move_right": round(right / total, 4),
    **{
        name: round(sum(bool(row[name]) for row in rows) / len(rows), 4)
        for name in ("search", "look_ahead")
    },
    "puzzles": rows,
}
Path(output).write_text(json.dumps(result), encoding="utf-8")

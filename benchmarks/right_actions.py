"""Train the network of `reference.py` that imitates right actions on the hidden lake, each time on all
states of other puzzles, and play the board's puzzles. It takes no action twice in a state.

    python benchmarks/right_actions.py OUTPUT

OUTPUT is a JSON file. For the development puzzles and those of the evaluation set it has, by the number
of puzzles that a training learns from and the training's seed, the number of states and 1 for each puzzle won.
"""

import json
import sys
from pathlib import Path

from reference import BOARDS, LABELS

from spa.envs.registry import make_env
from spa.rollout.loop import puzzle_hash
from spa_bench.reference.labels import (
    CENTRED_HIDDEN,
    centred_network,
    label_all_states,
    player_success,
)

TRAININGS = {LABELS: (1, 2, 3), 4 * LABELS: (1, 2, 3), 16 * LABELS: (1,)}
"""Number of puzzles -> the seeds of the trainings."""

envs = {}
hashes = {}
for name in ("hidden-lake-4x4", "hidden-lake-4x4-eval-set"):
    envs[name] = make_env(BOARDS[name].env_type, BOARDS[name].options)
    hashes[name] = []
    for seed in BOARDS[name].seeds:
        envs[name].reset(seed=seed)
        hashes[name].append(puzzle_hash(envs[name]))
found = {name: {"puzzle_hashes": hashes[name], "trainings": {}} for name in envs}
held_out = [each for board in hashes.values() for each in board]
for puzzles, training in [
    (puzzles, each) for puzzles, seeds in TRAININGS.items() for each in seeds
]:
    # The boards have the same game, so that either makes the examples.
    states = label_all_states(envs["hidden-lake-4x4"], puzzles, seed=training, held_out=held_out)
    play = centred_network(states, hidden=CENTRED_HIDDEN, seed=training, players="ABCDE")
    for name, env in envs.items():
        wins = []
        for seed in BOARDS[name].seeds:
            env.reset(seed=seed)
            wins.append(int(player_success(env, play, BOARDS[name].cap, repeat=False)))
        of_size = found[name]["trainings"].setdefault(puzzles, {})
        of_size[training] = {"states": len(states), "wins": wins}
        print(
            f"{name} {puzzles} {training}: {sum(wins) / len(wins):.1%} from {len(states)} states",
            flush=True,
        )
Path(sys.argv[1]).write_text(json.dumps(found) + "\n", encoding="utf-8")

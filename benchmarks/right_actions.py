"""Train the network of `reference.py` that imitates right actions three times on the hidden lake, each
time on all states of other puzzles, and play the board's puzzles. It takes no action twice in a state.

    python benchmarks/right_actions.py OUTPUT

OUTPUT is a JSON file. For the development puzzles and those of the evaluation set it has, for each
training, the number of states and 1 for each puzzle won.
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

found = {}
for name in ("hidden-lake-4x4", "hidden-lake-4x4-eval-set"):
    board = BOARDS[name]
    env = make_env(board.env_type, board.options)
    hashes = []
    for seed in board.seeds:
        env.reset(seed=seed)
        hashes.append(puzzle_hash(env))
    trainings = {}
    for training in (1, 2, 3):
        states = label_all_states(env, LABELS, seed=training, held_out=hashes)
        play = centred_network(states, hidden=CENTRED_HIDDEN, seed=training, players="ABCDE")
        wins = []
        for seed in board.seeds:
            env.reset(seed=seed)
            wins.append(int(player_success(env, play, board.cap, repeat=False)))
        trainings[training] = {"states": len(states), "wins": wins}
        print(
            f"{name} {training}: {sum(wins) / len(wins):.1%} from {len(states)} states", flush=True
        )
    found[name] = {"puzzle_hashes": hashes, "trainings": trainings}
Path(sys.argv[1]).write_text(json.dumps(found) + "\n", encoding="utf-8")

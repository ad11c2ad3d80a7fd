"""Speed of the grid games, beside gym-sokoban and Gymnasium in one run. Prints JSON.

    python benchmarks/environments.py [--gym-sokoban PYTHON] [--repeats N]

PYTHON is an interpreter with gym-sokoban 0.0.6 (its own environment: `pip install gym-sokoban==0.0.6`). Every figure is
per second of processor time on one core, the best of N repeats: what else the machine does counts little. FrozenLake is
played live: a game that has ended starts anew, and that counts. Ours and Gymnasium's take turns, and the ratio is that
of the medians.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from spa.envs.frozen_lake import FrozenLake
from spa.seeds import stream
from spa_games.sokoban import Sokoban
from spa_games.sokoban_rooms import generate_room
from spa_games.solvers.sokoban import fewest_moves
from spa_games.sudoku import Sudoku

GYM_SOKOBAN = r"""
import json, random, time, warnings
warnings.filterwarnings("ignore")
import numpy as np
from gym_sokoban.envs.sokoban_env import SokobanEnv
random.seed(0); np.random.seed(0)
def best(work, count, repeats):
    rates = []
    for _ in range(repeats):
        start = time.process_time(); work(); rates.append(count / (time.process_time() - start))
    return round(max(rates))
env = SokobanEnv(dim_room=(6, 6), num_boxes=1, max_steps=10**9)
def resets():
    for _ in range(100):
        env.reset()
def steps(mode):
    for action in np.random.randint(1, 5, size=1000):
        env.step(int(action), observation_mode=mode)
print(json.dumps({
    "levels 6x6, 1 box (resets)": best(resets, 100, REPEATS),
    "steps, tiny_rgb_array": best(lambda: steps("tiny_rgb_array"), 1000, REPEATS),
    "steps, rgb_array": best(lambda: steps("rgb_array"), 1000, REPEATS),
}))
"""


def rate(work: Callable[[], None], count: int, repeats: int) -> int:
    """Times per second, from the fastest of the repeats."""
    fastest = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        fastest = min(fastest, time.process_time() - start)
    return round(count / fastest)


def play(env, actions: list[int]) -> None:
    env.reset(seed=5)
    for action in actions:
        env.step(action)


def resets(env, count: int) -> None:
    for seed in range(count):
        env.reset(seed=seed)


def rooms(count: int, solve: bool, *shape: int) -> None:
    for seed in range(count):
        room = generate_room(stream(seed, "benchmark"), *shape)
        if solve:
            fewest_moves(room)


def ours(repeats: int) -> dict[str, int]:
    actions = np.random.default_rng(0).integers(1, 5, size=20_000).tolist()
    moves = partial(play, actions=actions)
    forever = {"max_steps": 1_000_000}
    return {
        "Sokoban steps, text": rate(lambda: moves(Sokoban(**forever)), len(actions), repeats),
        "Sokoban steps, text and coordinates": rate(
            lambda: moves(Sokoban(render_mode="text_with_coordinates", **forever)),
            len(actions),
            repeats,
        ),
        "Sokoban levels 6x6, 1 box": rate(lambda: rooms(500, False, 6, 6, 1), 500, repeats),
        "Sokoban levels 6x6, 1 box, optimal length": rate(
            lambda: rooms(500, True, 6, 6, 1), 500, repeats
        ),
        "Sokoban levels 10x10, 2 boxes": rate(lambda: rooms(60, False, 10, 10, 2), 60, repeats),
        "Sokoban levels 10x10, 2 boxes, optimal length": rate(
            lambda: rooms(60, True, 10, 10, 2), 60, repeats
        ),
        "Sokoban resets 6x6, 1 box": rate(lambda: resets(Sokoban(), 300), 300, repeats),
        "FrozenLake resets": rate(lambda: resets(FrozenLake(), 500), 500, repeats),
        "Sudoku resets 4x4, 12 clues": rate(lambda: resets(Sudoku(), 300), 300, repeats),
        "Sudoku resets 9x9, 36 clues": rate(lambda: resets(Sudoku(board_size=9), 20), 20, repeats),
    }


def live(env, actions: list[int]) -> float:
    """Seconds that steps of running games take, with the resets between the games: ours makes a new lake each time,
    Gymnasium's puts the player back to the start of its only one."""
    env.reset(seed=5)
    start = time.process_time()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return time.process_time() - start


def lakes(repeats: int) -> dict[str, float]:
    """Live steps per second, and how many times as fast as Gymnasium's without text ours are."""
    actions = np.random.default_rng(0).integers(0, 4, size=20_000)
    ours = (actions + 1).tolist()
    theirs = "Gymnasium, no text"
    players = {
        "text": (FrozenLake(), ours),
        "text and coordinates": (FrozenLake(render_mode="text_with_coordinates"), ours),
        theirs: (FrozenLakeEnv(), actions.tolist()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in players}
    for _ in range(repeats):
        for name, player in players.items():
            seconds[name].append(live(*player))
    median = {name: statistics.median(times) for name, times in seconds.items()}
    results = {
        f"live steps, {name}": float(round(len(actions) / taken)) for name, taken in median.items()
    }
    return results | {
        f"ratio to Gymnasium, {name}": round(median[theirs] / taken, 2)
        for name, taken in median.items()
        if name != theirs
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare the speed of the grid games with gym-sokoban and Gymnasium."
    )
    parser.add_argument(
        "--gym-sokoban",
        metavar="PYTHON",
        help="Python interpreter in which gym-sokoban 0.0.6 is installed",
    )
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    results: dict[str, object] = {
        "machine": {
            "python": platform.python_version(),
            "processor": platform.machine(),
            "load": os.getloadavg()[0],
        },
        "spa": ours(options.repeats),
        "FrozenLake": lakes(options.repeats),
    }
    if options.gym_sokoban:
        code = GYM_SOKOBAN.replace("REPEATS", str(options.repeats))
        done = subprocess.run(
            [options.gym_sokoban, "-c", code], capture_output=True, text=True, check=True
        )
        results["gym-sokoban"] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()

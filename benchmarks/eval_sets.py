"""Write the evaluation sets of the package: `src/spa/assets/eval_sets/*.json`.

    python benchmarks/eval_sets.py [SET…]

A set has 256 different puzzles of consecutive seeds from `FIRST_SEED` on. Puzzles whose content is among those of
`benchmarks/results/reference/` are left out, since boards and policies were developed on them. A set is never written
again once a result was published on it.
"""

import argparse
import json
from pathlib import Path

from spa.config.load import load_config
from spa.envs.eval_sets import EvalSet, to_json
from spa.envs.registry import make_env
from spa.rollout.loop import puzzle_hash

ROOT = Path(__file__).parents[1]
PUZZLES = 256
FIRST_SEED = 500_000_000
DEVELOPMENT = range(300_000, 300_256)
"""Seeds of the development puzzles of `benchmarks/reference.py`."""
SETS = {
    # name: (tag, turns, actions per turn)
    "hidden-lake-4x4": ("HiddenDynamicsLake", 3, 2),
    "lake-4x4": ("FrozenLakeNoSlip", 3, 2),
    "sokoban-6x6": ("SimpleSokoban", 5, 2),
    "sokoban-6x6-hard": ("HardSokoban", 5, 2),
    "sudoku-6-to-8-clues": ("SudokuFewClues", 2, 5),
}


def make(name: str) -> EvalSet:
    """The set of this name."""
    tag, turns, actions = SETS[name]
    spec = load_config("base").custom_envs[tag]
    env = make_env(spec.env_type, spec.env_config)
    seen = {
        content
        for path in (ROOT / "benchmarks/results/reference").glob("*.json")
        # A set that was opened is measured there, too.
        if not path.stem.endswith("-eval-set")
        for content in json.loads(path.read_text(encoding="utf-8"))["puzzle_hashes"]
    }
    for seed in DEVELOPMENT:
        env.reset(seed=seed)
        seen.add(puzzle_hash(env))
    seeds: list[int] = []
    hashes: list[str] = []
    seed = FIRST_SEED
    while len(seeds) < PUZZLES:
        env.reset(seed=seed)
        content = puzzle_hash(env)
        if content not in seen:
            seen.add(content)
            seeds.append(seed)
            hashes.append(content)
        seed += 1
    return EvalSet(
        name=name,
        tag=tag,
        env_type=spec.env_type,
        options=dict(spec.env_config or {}),
        max_turn=turns,
        max_actions_per_turn=actions,
        max_actions_per_traj=turns * actions,
        seeds=tuple(seeds),
        puzzle_hashes=tuple(hashes),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", default=[*SETS])
    folder = ROOT / "src/spa/assets/eval_sets"
    folder.mkdir(parents=True, exist_ok=True)
    for name in parser.parse_args().sets:
        made = make(name)
        (folder / f"{name}.json").write_text(to_json(made), encoding="utf-8")
        print(f"{name}: {len(made.seeds)} puzzles, sha256 {made.digest}", flush=True)


if __name__ == "__main__":
    main()

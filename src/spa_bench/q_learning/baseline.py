"""Compare training runs with tabular Q-learning that takes equally many actions."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from spa.config.schema import Config
from spa.config.stages import values_of
from spa.run.files import read_object, write_atomic
from spa_bench.q_learning import validation
from spa_sweeps.budget import budget
from spa_sweeps.grid import TrainingRun


def q_learning(training: TrainingRun, steps: int, *, learn: bool) -> dict[str, Any] | None:
    """Return the results of tabular Q-learning with `steps` actions on the puzzles of this training
    run (see `validation.validate_tables`).

    Results are stored next to the run and reused. With `learn`, missing results are computed.
    Returns None if there are no results, or if the environment does not support Q-learning.
    """
    path = training.folder.parent / "q_learning.json"
    known = read_object(path)
    # Reuse a stored result only for the same number of actions and the same puzzles.
    puzzles = _puzzles(training.ppo)
    if known.get("steps") == steps and known.get("puzzles", puzzles) == puzzles:
        return known
    rates = validation.validate_tables(training.ppo, steps) if learn else None
    if rates is not None:
        rates = {**rates, "puzzles": puzzles}
        write_atomic(path, [json.dumps(rates)])
    return rates


def _puzzles(cfg: Config) -> str:
    """A hash of everything that determines a Q-table: the games, their limits, and the seeds of
    their puzzles."""
    read = ("seed.", "es_manager.", "custom_envs.", "agent_proxy.max_")
    kept = {key: value for key, value in values_of(cfg, "ppo").items() if key.startswith(read)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def comparison_lines(trainings: Sequence[TrainingRun]) -> list[str]:
    """Describe the results of tabular Q-learning that takes the same number of actions as each of
    these training runs."""
    lines = []
    for seed, training in enumerate(trainings):
        # The budget is the number of environment steps up to the last PPO step, self-play included.
        steps = round(max(used.environment_steps for used in budget(training).values()))
        rates = q_learning(training, steps, learn=True)
        lines.append(
            f"Tabular Q-learning (seed {seed}) "
            + (
                f"solves {rates[validation.OTHER]:.1%} of held-out puzzles after {steps:,} actions in training puzzles."
                f" After {rates['tries']:,} tries of each held-out puzzle, tabular Q-learning solves "
                f"{rates[validation.SAME]:.1%}. No other method trains on held-out puzzles."
                if rates
                else "did not run, because the environment does not list its actions or cannot be copied."
            )
        )
    return lines

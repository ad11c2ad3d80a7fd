"""`spa bench methods`: train methods x boards x seeds as one grid, and rank the methods.

All training runs of a seed and a board have the same puzzles. Stages with equal fingerprints run
only once, and interrupted work resumes. Methods are compared at equal cost, self-play included:
equal environment steps, or equal sampled tokens. Both comparisons use the validations of the same
training runs.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from spa.config.schema import Config
from spa.config.stages import StageName
from spa.envs.cards import mean_optimum
from spa.errors import ConfigError, TrainingError
from spa.install import versions
from spa.recipes import setup
from spa.run.files import write_atomic
from spa.run.manifest import Manifest
from spa_bench.leaderboard.tables import leaderboard, row_of
from spa_bench.paper.hours import hours_of
from spa_bench.paper.paper import SCALES, Setting
from spa_bench.q_learning.baseline import q_learning
from spa_sweeps.budget import budget, learnt_tokens
from spa_sweeps.compare import continued, self_play_batches, training_of
from spa_sweeps.grid import (
    Plan,
    PoolOf,
    StageJob,
    TrainingRun,
    Work,
    do_task,
    finish_grid,
    own_process,
    plan_grid,
    time_of,
)
from spa_sweeps.methods import SHUFFLED, label, method
from spa_sweeps.results import read_trainings

METHODS = (
    "vanilla", "spa", "spa_shuffled", "planned", "plan_first", "choose_plan", "branched_data", "scout_data", "echo",
    "paw", "right_beliefs", "replay", "relabelled_rollouts", "rwml", "act_focus", "gigpo", "turn_rloo", "turn_ppo",
)  # fmt: skip
"""Default methods of the leaderboard."""
RESULTS = "leaderboard.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchScale:
    """Size of a benchmark: its boards, the overrides for all boards, and the approximate hours of
    each stage."""

    boards: Mapping[str, Setting]
    hours: Mapping[str, float]
    common: tuple[str, ...] = ()


_TINY = SCALES["tiny"]
_FULL = SCALES["full"]
_SLIPPERY = ("custom_envs.FrozenLakeNoSlip.env_config.is_slippery=true",)

BENCHES: Mapping[str, BenchScale] = {
    "tiny": BenchScale(
        boards={
            **{name: _TINY.settings[name] for name in ("FrozenLake", "FrozenLake 4x4", "Sokoban")},
            "FrozenLake, slippery": Setting(preset="tiny", overrides=_SLIPPERY),
        },
        hours=_TINY.hours,
        common=(*_TINY.common, "trainer.test_freq=8"),
    ),
    "smol": BenchScale(
        boards={
            "FrozenLake": Setting(preset="smol_frozen_lake_states"),
            "Sokoban": Setting(preset="smol_sokoban"),
            "Sudoku": Setting(preset="smol_sudoku"),
        },
        hours={"selfplay": 0.1, "sft": 1.0, "ppo": 1.2},
        common=(
            "trainer.test_freq=5",
            # The shipped presets of this size exclude states from the policy loss and replay
            # examples with true states in PPO. Here, every method starts from plain PPO.
            "actor_rollout_ref.actor.loss_mask=sampled",
            "actor_rollout_ref.actor.replay.examples=0",
            "actor_rollout_ref.actor.replay.loss_on=null",
        ),
    ),
    "full": BenchScale(
        boards={
            name: setting for name, setting in _FULL.settings.items() if name != "Sokoban, 2 boxes"
        },
        hours=_FULL.hours,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A planned benchmark. `names` are its methods, and `trainings` the training runs of each
    (board, method label), one per seed."""

    scale: str
    root: Path
    seeds: int
    names: tuple[str, ...]
    overrides: tuple[str, ...]
    trainings: Mapping[tuple[str, str], tuple[TrainingRun, ...]]

    @property
    def boards(self) -> list[str]:
        """Names of the boards, without duplicates."""
        return list(dict.fromkeys(board for board, _ in self.trainings))

    @cached_property
    def grid(self) -> Plan:
        """The plan of all stages, without duplicates. They are ordered by seed, so that early
        results already compare all methods."""
        order = [parts[seed] for seed in range(self.seeds) for parts in self.trainings.values()]
        return plan_grid(order, [self.root])

    def hours(self, devices: int) -> float:
        """Approximate hours of the missing stages, with one stage at a time on each device.

        The estimate for a stage is the mean duration of finished stages of the same board and kind.
        If there are none, it is the scale's hours.
        """
        took: dict[tuple[StageName, str], list[float]] = {}
        for task in self.grid.tasks:
            if task.done:
                known = Manifest.read(task.folder)
                took.setdefault((task.stage, _board(self, task)), []).append(
                    known.seconds / 3600 if known else 0.0
                )
        known = {key: float(np.mean(hours)) for key, hours in took.items()}
        usual = BENCHES[self.scale].hours

        def hours(task: StageJob) -> float:
            found = known.get((task.stage, _board(self, task)))
            return hours_of(task, usual) if found is None else found

        return time_of(self.grid, hours, workers=devices)


def _board(made: Bench, task: StageJob) -> str:
    # The path is <root>/<board>/seed_<n>/<method>/<stage>, so its first part names the board.
    return task.folder.relative_to(made.root).parts[0]


def make_bench(
    names: Sequence[str],
    scale: str,
    root: Path,
    *,
    boards: Sequence[str] = (),
    seeds: int = 3,
    overrides: Sequence[str] = (),
) -> Bench:
    """Plan a benchmark of methods (default: `METHODS`) on boards (default: all boards of the
    scale), in the folder `root`.

    Raises ConfigError for an unknown scale, board or method, and if `seeds` is below 1.
    """
    if scale not in BENCHES:
        raise ConfigError(f"there is no scale {scale!r}; choose from {', '.join(BENCHES)}")
    if seeds < 1:
        raise ConfigError(f"--seeds is {seeds}. Give a number of at least 1.")
    known = BENCHES[scale].boards
    if missing := [board for board in boards if board not in known]:
        raise ConfigError(
            f"scale {scale} has no board {missing[0]!r}; choose from {', '.join(known)}"
        )
    names = tuple(dict.fromkeys(names or METHODS))
    trainings = {
        (board, label(name)): tuple(
            _training(scale, board, name, seed, root=root, overrides=overrides)
            for seed in range(seeds)
        )
        for board in boards or known
        for name in names
    }
    return Bench(
        scale=scale,
        root=root,
        seeds=seeds,
        names=names,
        overrides=tuple(overrides),
        trainings=trainings,
    )


def _training(
    scale: str, board: str, name: str, seed: int, *, root: Path, overrides: Sequence[str]
) -> TrainingRun:
    """Plan the training run of a method on a board, in `<root>/<board>/seed_<n>/<method>`.

    A method without self-play continues until its total number of episodes equals that of a method
    with self-play.
    """
    setting = BENCHES[scale].boards[board]
    chosen = method(name)
    changes = (*setting.overrides, *BENCHES[scale].common, *overrides)
    folder = root / re.sub(r"[^\w.-]+", "-", board) / f"seed_{seed}" / label(name)
    training = training_of(
        chosen,
        setting.preset,
        changes,
        folder,
        f"{board}/seed {seed}/{name}",
        seed=seed,
        root=root,
    )
    if chosen.fine_tuned:
        return training
    return continued(training, self_play_batches(training.ppo))


def with_controls(made: Bench, ranking: Sequence[str], count: int) -> Bench:
    """Return the benchmark extended by shuffled controls. The first `count` methods of the ranking
    that have a control get one."""
    named = {label(name): name for name in made.names}
    wanted = [
        f"{named[name]}{SHUFFLED}"
        for name in ranking
        if not name.endswith(SHUFFLED) and method(named[name]).has_control
    ]
    return make_bench(
        (*made.names, *wanted[:count]),
        made.scale,
        made.root,
        boards=made.boards,
        seeds=made.seeds,
        overrides=made.overrides,
    )


def run_bench(
    made: Bench,
    *,
    controls: int = 0,
    train: bool = True,
    parallel: int = 2,
    pool: PoolOf = own_process,
    work: Work = do_task,
) -> dict[str, Any]:
    """Run the missing stages if `train` is set, then the shuffled controls of the best `controls`
    methods.

    Writes `leaderboard.json` from finished work and returns its content. If a stage fails, the file
    is written before TrainingError is raised.
    """
    made.root.mkdir(parents=True, exist_ok=True)
    failed = _train(made, parallel, pool, work) if train else None
    result = results(made)
    # Plan controls only after the ranking, because only the best methods justify their cost.
    if controls and failed is None:
        ranking = [entry["method"] for entry in result["leaderboard"]["environment_steps"]]
        made = with_controls(made, ranking, controls)
        failed = _train(made, parallel, pool, work) if train else None
        result = results(made)
    # Q-learning is last, because its number of actions depends on the finished training runs.
    result["q_learning"] = _q_learning(made, result["budgets"]["environment_steps"], train=train)
    write_atomic(
        made.root / RESULTS,
        [json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n"],
    )
    if failed is not None:
        raise failed
    return result


def _q_learning(
    made: Bench, budgets: Mapping[str, float], *, train: bool
) -> dict[str, list[dict[str, Any]]]:
    """Run tabular Q-learning on each board, with the board's budget as the number of actions.
    Returns the results by board, one per seed.

    Without `train`, only results from earlier calls are returned.
    """
    results_of: dict[str, list[dict[str, Any]]] = {}
    for (board, _), trainings in made.trainings.items():
        # Learn one table per board and seed, because it is compared with all methods.
        if board in budgets and board not in results_of:
            parts = [q_learning(one, round(budgets[board]), learn=train) for one in trainings]
            results_of[board] = [part for part in parts if part is not None]
    return results_of


def _train(made: Bench, parallel: int, pool: PoolOf, work: Work) -> TrainingError | None:
    """Run the missing stages. Returns the error if a stage failed, else None."""
    trainings = made.trainings.values()
    return finish_grid(
        trainings, lambda: replace(made).grid, parallel=parallel, pool=pool, work=work
    )


def results(made: Bench) -> dict[str, Any]:
    """The content of `leaderboard.json`: one row per method, board and seed, and the tables made
    from them. Methods with unfinished training runs are omitted and listed under `not_run`."""
    read = {key: read_trainings(trainings) for key, trainings in made.trainings.items()}
    # Omit a method with unfinished seeds, because a mean over fewer seeds is not comparable.
    seeds_of = {key: parts if len(parts) == made.seeds else [] for key, parts in read.items()}
    rows = []
    optima = dict[tuple[str, int], float | None]()
    for (board, name), trainings in made.trainings.items():
        for result in seeds_of[board, name]:
            training = trainings[result.seed]
            # All methods of a board and seed have the same puzzles, so compute the optimum only
            # once.
            if (board, result.seed) not in optima:
                optima[board, result.seed] = optimum(training.ppo)
            best = optima[board, result.seed]
            row = row_of(name, board, result, optimum=best, budget=budget(training))
            rows.append({**row, "learnt_tokens": learnt_tokens(training)})
    return {
        "scale": made.scale,
        "overrides": list(made.overrides),
        "seeds": made.seeds,
        "boards": {board: _played(made, board) for board in made.boards},
        "descriptions": {label(name): method(name).description for name in made.names},
        "rows": rows,
        "not_run": [
            f"{board}/{name}"
            for (board, name), parts in seeds_of.items()
            if len(parts) < made.seeds
        ],
        **leaderboard(rows, seeds_of),
        "versions": versions(),
    }


def _played(made: Bench, board: str) -> dict[str, Any]:
    setting = BENCHES[made.scale].boards[board]
    return {"preset": setting.preset, "changes": [*setting.overrides, *BENCHES[made.scale].common]}


def optimum(cfg: Config) -> float | None:
    """Success rate of the best policy on the validation puzzles within the action limit, as defined
    for reference scores. None if unknown."""
    worker = setup.make_worker(cfg, None, mode=cfg.ctx_manager.mode)
    shares = []
    for spec in setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0):
        # All members of a group play the same puzzle, so one member is enough.
        look = worker.peek_reset(spec) if spec.member == 0 else None
        if look is not None:
            shares.append(look.env.best_success(cfg.most_actions(spec.tag)))
    rate = mean_optimum(shares)
    return None if rate is None else round(float(rate), 4)

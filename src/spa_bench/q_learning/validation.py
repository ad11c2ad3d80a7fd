"""Tabular Q-learning on the validation puzzles, as a baseline without a language model.

A Q-table has no values for unseen boards, so there are two variants. *On other puzzles*: the table
learns on training puzzles, and acts at random in unseen states. This is the fair comparison. *On
the puzzle itself*: the table first explores each reported puzzle, which no model is allowed to do.
"""

from collections.abc import Iterator
from typing import Any

from spa.config.schema import Config
from spa.envs.base import TextEnv
from spa.errors import ConfigError
from spa.recipes import setup
from spa.seeds import stream
from spa.types import Engine
from spa_bench.q_learning.scout import STEPS, Scout, Values, learn, require_copies, table_engine

OTHER = "on other puzzles"
SAME = "on the puzzle itself"


def validate_tables(cfg: Config, steps: int) -> dict[str, Any] | None:
    """Measure success rates on the validation puzzles.

    In the result, `OTHER` is the rate of a Q-table after `steps` actions in training puzzles.
    `SAME` is the rate of `Scout`, which first takes `tries` actions in each puzzle. `states` is the
    number of states in the Q-table. Returns None if `require_copies` rejects an environment.
    """
    worker = setup.make_worker(cfg, None, mode="base")
    try:
        setup.check_puzzles(cfg, cfg.es_manager.val.env_configs.tags, require_copies)
    # Without copies or a list of actions, there can be no table.
    except ConfigError:
        return None
    most = setup.most_actions(cfg)
    per_turn = cfg.agent_proxy.max_actions_per_turn
    values: Values = {}
    starts = training_games(cfg, worker)
    learn(values, starts, steps=steps, most=most, rng=stream(cfg.seed.train, "q_learning"))
    return {
        "steps": steps,
        "states": len(values),
        "tries": STEPS,
        OTHER: success(cfg, worker, table_engine(values, max_actions=per_turn)),
        SAME: success(cfg, worker, Scout(max_actions=per_turn, most=most)),
    }


def training_games(cfg: Config, worker: setup.RolloutWorker) -> Iterator[TextEnv]:
    """Yield training puzzles endlessly, each in its initial state."""
    # As for every method, training puzzles exclude the validation puzzles.
    held_out = setup.validation_hashes(cfg, worker)
    step = 0
    while True:
        for spec in setup.training_specs(cfg, worker, "train", step=step, held_out=held_out):
            if (look := worker.peek_reset(spec)) is not None:
                yield look.env
        step += 1


def success(cfg: Config, worker: setup.RolloutWorker, engine: Engine) -> float:
    """The share of validation episodes in which `engine` succeeds."""
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0)
    episodes = worker.rollout(engine, specs, setup.val_sampling(cfg))
    return round(sum(episode.success for episode in episodes) / len(episodes), 4)

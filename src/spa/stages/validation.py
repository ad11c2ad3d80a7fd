"""Playing held-out puzzles to see how good a policy is."""

from spa.config.schema import Config
from spa.engines.base import Engine
from spa.evaluation.search import rollout_metrics
from spa.run.recorder import Recorder
from spa.stages import setup
from spa.types import Episode, Metrics


def validation_episodes(cfg: Config, worker: setup.RolloutWorker, engine: Engine) -> list[Episode]:
    """The validation puzzles, `validation_steps` times as many as there are groups, each pass on
    puzzles of its own.

    The puzzles and the draws are the same at every call, so that validations of one run can be
    compared.
    """
    episodes = []
    groups = sum(cfg.es_manager.val.env_configs.n_groups or ())
    for part in range(cfg.trainer.validation_steps):
        specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=part)
        # Group numbers of its own for each pass, since Pass@k pools by group.
        shifted = [setup.shift_group(spec, part * groups) for spec in specs]
        episodes += worker.rollout(engine, shifted, setup.val_sampling(cfg))
    return episodes


def validate(
    cfg: Config, worker: setup.RolloutWorker, engine: Engine, rec: Recorder, step: int
) -> Metrics:
    """Validation metrics under `val-env/<tag>/`; the episodes are recorded."""
    episodes = validation_episodes(cfg, worker, engine)
    rec.trajectories(step, "val", episodes)
    return rollout_metrics(episodes, worker.make_env, "val-env")

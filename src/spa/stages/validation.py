"""Playing held-out puzzles to see how good a policy is."""

from spa.config.schema import Config
from spa.engines.base import Engine
from spa.stages import setup
from spa.types import Episode


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
        # Each pass gets group numbers of its own, so that no two groups share a number.
        shifted = [setup.shift_group(spec, part * groups) for spec in specs]
        episodes += worker.rollout(engine, shifted, setup.val_sampling(cfg))
    return episodes

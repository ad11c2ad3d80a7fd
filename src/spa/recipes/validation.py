"""Playing held-out puzzles to see how good a policy is."""

from collections.abc import Iterator

from spa.config.schema import Config
from spa.engines.base import Engine
from spa.envs.pool import EpisodeSpec
from spa.recipes import setup
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
        for chunk in _at_a_time(cfg, shifted):
            episodes += worker.rollout(engine, chunk, setup.val_sampling(cfg))
    return episodes


def _at_a_time(cfg: Config, specs: list[EpisodeSpec]) -> Iterator[list[EpisodeSpec]]:
    """The episodes in parts that are played side by side: on a GPU whole groups, as many episodes
    as in a training step, whose caches fit into the memory. Players of one game stay together."""
    size = len(specs)
    if setup.pick_device(cfg).type == "cuda" and not any(spec.table for spec in specs):
        train, samples = cfg.es_manager.train, cfg.es_manager.val.group_size
        size = max(1, train.env_groups * train.group_size // samples) * samples
    for start in range(0, len(specs), size):
        yield specs[start : start + size]

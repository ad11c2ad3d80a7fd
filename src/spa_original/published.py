"""Recognize the original's published checkpoints by name, and find data and checkpoint folders that
its scripts have written."""

import re
from pathlib import Path

from spa.config.schema import Config

CONFIGS = {"SimpleSokoban": "_2_sokoban", "FrozenLake": "_3_frozen_lake", "Sudoku": "_10_sudoku"}
"""Environment tag -> name of the original's configuration, for tags with published data and
checkpoints."""

# Matches Hub names like SPA-sokoban-... and folders like sftckpt/checkpoints_2_sokoban-..., but not
# a name like my-sokoban.
_PUBLISHED = re.compile(
    r"SPA-(sokoban|frozenlake|sudoku)|sftckpt|checkpoints(_2_sokoban|_3_frozen_lake|_10_sudoku)"
)


def data_folders(cfg: Config) -> list[Path]:
    """Find the original's data folders in the working directory for the training tags of `cfg`,
    newest first. An example is `sftdata/_2_sokoban-…`."""
    return _folders(cfg, "sftdata", "")


def checkpoint_folders(cfg: Config) -> list[Path]:
    """Find the original's checkpoint folders in the working directory for the training tags of
    `cfg`, newest first. An example is `sftckpt/checkpoints_2_sokoban-…`."""
    return _folders(cfg, "sftckpt", "checkpoints")


def _folders(cfg: Config, parent: str, prefix: str) -> list[Path]:
    folders = []
    for tag in cfg.es_manager.train.env_configs.tags:
        if tag in CONFIGS:
            folders += [
                path for path in Path(parent).glob(f"{prefix}{CONFIGS[tag]}-*") if path.is_dir()
            ]
    return sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)


def model_notes(name: str) -> list[str]:
    """Return a warning if `name` is one of the original's published checkpoints, because spa words
    its prompts differently; otherwise an empty list."""
    if not _PUBLISHED.search(name):
        return []
    return [
        f"{name} was trained on the prompts of the original SPA code; spa's prompts have "
        "other words. To use the original prompts, load a configuration next to a copy "
        "of its envs.yaml (docs/parity.md)."
    ]

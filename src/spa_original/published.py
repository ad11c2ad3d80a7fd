"""The original's published checkpoints and data sets, by name or in the folders of its users."""

import re
from pathlib import Path

from spa.config.schema import Config

CONFIGS = {"SimpleSokoban": "_2_sokoban", "FrozenLake": "_3_frozen_lake", "Sudoku": "_10_sudoku"}
"""Tags that the original published data and checkpoints for, and its names for their
configurations."""

# Matches Hub names like SPA-sokoban-... and folders like
# sftckpt/checkpoints_2_sokoban-..., but not a name like my-sokoban.
_PUBLISHED = re.compile(
    r"SPA-(sokoban|frozenlake|sudoku)|sftckpt|checkpoints(_2_sokoban|_3_frozen_lake|_10_sudoku)"
)


def data_folders(cfg: Config) -> list[Path]:
    """The original's folders of data for the tags of this configuration, newest first:
    `sftdata/_2_sokoban-…`."""
    return _folders(cfg, "sftdata", "")


def checkpoint_folders(cfg: Config) -> list[Path]:
    """The original's folders of checkpoints for the tags of this configuration, newest first:
    `sftckpt/checkpoints_2_sokoban-…`."""
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
    """Warn that a published checkpoint knows other prompts than ours."""
    if not _PUBLISHED.search(name):
        return []
    return [
        f"{name} was trained on the prompts of the original SPA code; spa's prompts have "
        "other words. To use the original prompts, load a configuration next to a copy "
        "of its envs.yaml (docs/parity.md)."
    ]

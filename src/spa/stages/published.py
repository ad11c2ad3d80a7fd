"""What was published, and where the original's users keep things: data sets and checkpoints by name
or in folders."""

import logging
import re
from pathlib import Path

from spa.config.schema import Config
from spa.errors import DataError
from spa.models.hub import download_data, is_data_name

log = logging.getLogger(__name__)

CONFIGS = {"SimpleSokoban": "_2_sokoban", "FrozenLake": "_3_frozen_lake", "Sudoku": "_10_sudoku"}
"""Tags that the original published data and checkpoints for, and its names for their
configurations."""

# File name patterns of each split: our own first, then those that data sets on the Hub use.
SPLITS = {
    "train": ("wm_train*.parquet", "train*.parquet"),
    "val": ("wm_val*.parquet", "val*.parquet", "test*.parquet"),
}
# Matches Hub names like SPA-sokoban-... and folders like
# sftckpt/checkpoints_2_sokoban-..., but not a name like my-sokoban.
_PUBLISHED = re.compile(
    r"SPA-(sokoban|frozenlake|sudoku)|sftckpt|checkpoints(_2_sokoban|_3_frozen_lake|_10_sudoku)"
)


def original_folders(cfg: Config, parent: str, prefix: str) -> list[Path]:
    """The original's folders for the tags of this configuration, newest first:
    `sftckpt/checkpoints_2_sokoban-…`, `sftdata/_2_sokoban-…`."""
    found = []
    for tag in cfg.es_manager.train.env_configs.tags:
        if tag in CONFIGS:
            found += [
                path for path in Path(parent).glob(f"{prefix}{CONFIGS[tag]}-*") if path.is_dir()
            ]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def data_files(name: str, split: str) -> list[Path]:
    """The parquet files of a split: `name` is a file, a folder with files of both splits
    (`wm_train.parquet`, or `data/train-00000-of-00001.parquet`), or a Hub data set (owner/name).

    Raises DataError if there is nothing.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        if not is_data_name(name):
            raise DataError(
                f"{name}: the file or folder does not exist. Generate data (spa run --stages "
                "selfplay), or set data.train_files and data.val_files to parquet files, "
                "folders, or a Hugging Face data set (owner/name)."
            )
        path = download_data(name)
    for pattern in SPLITS[split]:
        files = sorted(file for folder in (path, path / "data") for file in folder.glob(pattern))
        if files:
            return files
    raise DataError(
        f"{path}: the folder has no parquet file of the split {split!r}; name the file "
        f"wm_{split}.parquet"
    )


def note_published(name: str) -> None:
    """Say that a published checkpoint knows other prompts than ours."""
    if _PUBLISHED.search(str(name)):
        log.warning(
            "%s was trained on the prompts of the original SPA code; spa's prompts have "
            "other words. To use the original prompts, load a configuration next to a copy "
            "of its envs.yaml (docs/parity.md).",
            name,
        )

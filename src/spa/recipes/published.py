"""Published data sets and checkpoints, by name or in the folders of the original's users."""

import itertools
import logging
import re
from pathlib import Path

from spa.config.schema import Config
from spa.errors import DataError
from spa.models.hub import DATA_SUFFIXES, SPLITS, download_data, is_data_name

log = logging.getLogger(__name__)

CONFIGS = {"SimpleSokoban": "_2_sokoban", "FrozenLake": "_3_frozen_lake", "Sudoku": "_10_sudoku"}
"""Tags that the original published data and checkpoints for, and its names for their
configurations."""

# Matches Hub names like SPA-sokoban-... and folders like
# sftckpt/checkpoints_2_sokoban-..., but not a name like my-sokoban.
_PUBLISHED = re.compile(
    r"SPA-(sokoban|frozenlake|sudoku)|sftckpt|checkpoints(_2_sokoban|_3_frozen_lake|_10_sudoku)"
)


def original_folders(cfg: Config, parent: str, prefix: str) -> list[Path]:
    """The original's folders for the tags of this configuration, newest first:
    `sftckpt/checkpoints_2_sokoban-…`, `sftdata/_2_sokoban-…`."""
    folders = []
    for tag in cfg.es_manager.train.env_configs.tags:
        if tag in CONFIGS:
            folders += [
                path for path in Path(parent).glob(f"{prefix}{CONFIGS[tag]}-*") if path.is_dir()
            ]
    return sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)


def data_files(name: str, split: str, *, required: bool = True) -> list[Path]:
    """The files of a split: `name` is a file, a folder with files of both splits
    (`wm_train.parquet`, `train.jsonl`, or `data/train-00000-of-00001.parquet`), or a Hub data set
    (owner/name).

    Raises DataError if there is nothing, unless the split is not `required`.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        if not is_data_name(name):
            raise DataError(
                f"{name}: the file or folder does not exist. Generate data (spa run --stages "
                "selfplay), or set data.train_files to a file (.jsonl, .json or .parquet), a "
                "folder, or a Hugging Face data set (owner/name)."
            )
        path = download_data(name)
    data = [
        file
        for folder in (path, path / "data")
        for file in sorted(folder.glob("*"))
        if file.suffix in DATA_SUFFIXES and file.is_file()
    ]
    # A folder may have the same data in several formats, of which one is read.
    for prefix, suffix in itertools.product(SPLITS[split], DATA_SUFFIXES):
        files = [file for file in data if file.name.startswith(prefix) and file.suffix == suffix]
        if files:
            return files
    if not required:
        return []
    found = ", ".join(file.name for file in data) or "none"
    raise DataError(
        f"{path}: the folder has no file of the split {split!r} (data files: {found}). Name the "
        f"file {split}.jsonl, {split}.json or {split}.parquet, or set data.{split}_files to it."
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

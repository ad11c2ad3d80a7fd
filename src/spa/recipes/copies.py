"""Where copies of a run's checkpoints and data go, as the configuration asks (`trainer.default_hdfs_dir`)."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from spa.config.schema import Config

if TYPE_CHECKING:
    from spa.training.mirror import Mirror


def copies_of(cfg: Config, directory: Path) -> str | None:
    """The URL for copies of a folder of the run: its place in the run, below the configured URL; None without one."""
    url, place = cfg.trainer.default_hdfs_dir, os.path.relpath(directory, cfg.trainer.run_dir)
    return url and f"{url.rstrip('/')}/{directory.name if place.startswith('..') else Path(place).as_posix()}"


def mirror_of(cfg: Config, directory: Path) -> "Mirror | None":
    """The copies of a stage; None if none are asked for. Raises ConfigError if the URL cannot be used."""
    from spa.training.mirror import Mirror

    url = copies_of(cfg, directory)
    return Mirror(url) if url else None

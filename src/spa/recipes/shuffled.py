"""The control data set: the same self-play, with next states that belong to other turns."""

from pathlib import Path

from spa.config.schema import Config
from spa.recipes.generate import TRAIN_FILE, VAL_FILE
from spa.worldmodel.rows import read_parquet, shuffle_next_states, write_parquet


def shuffled_data(cfg: Config, data: Path, out: Path) -> Path:
    """A copy of the data set in `data` whose predictions hold next states of other turns; returns its folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name in (TRAIN_FILE, VAL_FILE):
        write_parquet(out / name, shuffle_next_states(read_parquet(data / name), cfg.seed.train))
    return out

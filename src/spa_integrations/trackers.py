"""Experiment trackers that use other packages, registered in `pyproject.toml` under
`spa.trackers`.

A tracker's package is imported only when the tracker is used. `spa.run.trackers` disables a tracker
after its first error.
"""

import secrets
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from spa.run.console import printable
from spa.run.files import TRACKER_ID, jsonable, write_atomic
from spa.tables import Table
from spa.types import Episode


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}


_TABLE = ("episode", "tag", "success", "stop", "score", "turns", "conversation")


def _table_rows(episodes: Sequence[Episode]) -> list[list[Any]]:
    rows = []
    for episode in episodes:
        talk = "\n\n".join(
            f"[{message['role']}]\n{message['content']}" for message in episode.messages
        )
        # A sampled text may contain lone surrogates, which UTF-8 cannot encode.
        talk = talk.encode("utf-8", "backslashreplace").decode()
        ending = (str(episode.stop), episode.score, len(episode.turns), talk)
        rows.append([episode.episode_id, episode.tag, episode.success, *ending])
    return rows


class TensorBoard:
    """Tracker that writes scalars and sample episodes for TensorBoard to `<stage>/tensorboard`."""

    def __init__(self, *, directory: Path, start_step: int, **_: Any) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Removes the points that an interrupted run logged after `start_step`, because a resumed
        # run repeats these steps.
        purge = start_step + 1 if start_step else None
        self._writer = SummaryWriter(str(directory / "tensorboard"), purge_step=purge)

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Log the numeric metrics of one step. Other values are skipped."""
        for key, value in _numbers(metrics).items():
            self._writer.add_scalar(key, value, step)

    def episodes(self, step: int, split: str, episodes: Sequence[Episode]) -> None:
        """Log sample episodes as a table with the name `episodes/<split>`."""
        rows = _table_rows(episodes)
        # The table leaves out the long conversations, which are logged below as separate texts.
        cells = [[printable(str(value)) for value in row[:-1]] for row in rows]
        table = Table(_TABLE[:-1], cells, right=(4, 5))
        self._writer.add_text(f"episodes/{split}", table.markdown(), step)
        for index, row in enumerate(rows):
            # Indented text is shown unchanged, because Markdown treats it as code.
            indented = "\n".join("    " + line for line in row[-1].splitlines())
            self._writer.add_text(f"episodes/{split}/{index}", indented, step)

    def close(self) -> None:
        """Close the tracker."""
        self._writer.close()


def _identity(directory: Path) -> str:
    """Return the run id of a stage for trackers. It is kept in the stage's folder, so that a
    resumed stage continues its curves and a new one starts new curves."""
    file = directory / TRACKER_ID
    if not file.exists():
        write_atomic(file, [secrets.token_hex(8)])
    return file.read_text(encoding="utf-8")


class Wandb:
    """Tracker for Weights & Biases. With wandb's environment variable `WANDB_MODE=offline`,
    everything stays on this machine."""

    def __init__(
        self, *, directory: Path, stage: str, config: Any, project: str, name: str, **_: Any
    ) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        self._wandb = wandb
        self._run = wandb.init(
            project=project or "spa",
            name=f"{name}-{stage}" if name else None,
            group=name or None,
            job_type=stage,
            dir=str(directory),
            id=_identity(directory),
            resume="allow",
            config=None if config is None else jsonable(config),
        )

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Log the numeric metrics of one step. Other values are skipped."""
        self._run.log(_numbers(metrics), step=step)

    def episodes(self, step: int, split: str, episodes: Sequence[Episode]) -> None:
        """Log sample episodes as a table with the name `episodes/<split>`."""
        self._run.log(
            {
                f"episodes/{split}": self._wandb.Table(
                    columns=list(_TABLE), data=_table_rows(episodes)
                )
            },
            step=step,
        )

    def close(self) -> None:
        """Close the tracker."""
        self._run.finish()


class Trackio:
    """Tracker for Trackio, a local dashboard with the interface of Weights & Biases."""

    def __init__(
        self, *, directory: Path, stage: str, config: Any, project: str, name: str, **_: Any
    ) -> None:
        import trackio  # pyright: ignore[reportMissingImports]

        self._trackio = trackio
        with redirect_stdout(sys.stderr):  # trackio prints to stdout, where spa prints results
            self._run = trackio.init(
                project=project or "spa",
                name=f"{name or directory.resolve().parent.name}-{stage}-{_identity(directory)[:6]}",
                resume="allow",
                config=None if config is None else jsonable(config),
            )

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Log the numeric metrics of one step. Other values are skipped."""
        self._run.log(_numbers(metrics), step=step)

    def episodes(self, step: int, split: str, episodes: Sequence[Episode]) -> None:
        """Log sample episodes as a table with the name `episodes/<split>`."""
        import pandas  # a dependency of trackio

        frame = pandas.DataFrame(_table_rows(episodes), columns=list(_TABLE))
        self._run.log({f"episodes/{split}": self._trackio.Table(dataframe=frame)}, step=step)

    def close(self) -> None:
        """Close the tracker."""
        with redirect_stdout(sys.stderr):
            self._trackio.finish()

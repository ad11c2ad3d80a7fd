"""Destinations of metrics besides the files: the console and the trackers named in
`trainer.logger`.

A tracker is optional in every sense: its package is imported when it is asked for, and the first
error it makes turns it off with one warning. Training never stops for it.
"""

import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spa.envs.limits import EnvFault, boundary
from spa.errors import ConfigError
from spa.run.console import printable
from spa.run.files import ARCHIVE, jsonable
from spa.run.progress import ProgressLine
from spa.run.recorder import OpenTrackers, Sink
from spa.tables import Table

if TYPE_CHECKING:
    from spa.types import Episode

_LOGGER = logging.getLogger("spa.run")

SAMPLE_EPISODES = 8
"""Episodes that a tracker gets as a table at each step that records some, unless told otherwise."""

SHOWN = (
    # ending of the metric's name, what the console calls it, number format
    ("success", "success", "{:.3f}"),
    ("format_rate", "format", "{:.2f}"),
    ("prediction_em", "prediction", "{:.3f}"),
    ("copy_exact", "copy baseline", "{:.3f}"),
    ("obs_exact", "observation", "{:.3f}"),
    ("loss", "loss", "{:.4f}"),
    ("val/loss", "validation loss", "{:.4f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("throughput", "tokens/s", "{:,.0f}"),
)
"""The metrics that matter while one waits, in the order in which they are shown."""


TRACKERS = ("console", "tensorboard", "wandb", "trackio")
"""Values of `trainer.logger`. The files are always written; "file" and "jsonl" are accepted and add
nothing."""


def trackers_named(
    names: Sequence[str],
    *,
    project: str = "",
    name: str = "",
    samples: Mapping[str, int] | None = None,
) -> OpenTrackers:
    """Return a function that opens the trackers of these names for a recorder. Raises ConfigError
    if one is unknown.

    `samples`: how many episodes of a split ("train", "val") they get as a table; default: 8.
    """
    unknown = [name for name in names if name not in (*TRACKERS, "file", "jsonl")]
    if unknown:
        raise ConfigError(
            f"trainer.logger: unknown tracker {', '.join(unknown)}; choose from {', '.join(TRACKERS)}."
        )
    return partial(Sinks, names, project=project, name=name, samples=samples or {})


class Sinks:
    """The chosen sinks, called one after the other; one that fails is dropped."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        directory: Path,
        stage: str,
        config: Any,
        total_steps: int | None,
        start_step: int,
        project: str,
        name: str,
        samples: Mapping[str, int],
    ) -> None:
        self._samples = samples
        makers: dict[str, Callable[[], Sink]] = {
            "console": lambda: _ConsoleSink(stage, name, total_steps, start_step),
            "tensorboard": lambda: _TensorBoardSink(directory, start_step),
            "wandb": lambda: _WandbSink(directory, stage, config, project, name),
            "trackio": lambda: _TrackioSink(directory, stage, config, project, name),
        }
        self._active: dict[str, Sink] = {}
        for key in names:
            if key in makers:
                self._guard(key, lambda key=key: self._active.__setitem__(key, makers[key]()))

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Send metrics to every sink."""
        # A copy of the items: `_guard` drops a sink that fails.
        for key, sink in list(self._active.items()):
            self._guard(key, lambda sink=sink: sink.log(step, metrics))

    def episodes(self, step: int, split: str, episodes: "Sequence[Episode]") -> None:
        """Send a few episodes to every sink."""
        chosen = episodes[: self._samples.get(split, SAMPLE_EPISODES)]
        if not chosen:
            return
        for key, sink in list(self._active.items()):
            self._guard(key, lambda sink=sink: sink.episodes(step, split, chosen))

    def close(self) -> None:
        """Close every sink."""
        for key, sink in list(self._active.items()):
            self._guard(key, sink.close)
        self._active.clear()

    def _guard(self, key: str, call: Callable[[], None]) -> None:
        try:
            with boundary(f"tracker {key}"):  # third-party code, which may use a network
                call()
        except EnvFault as fault:
            missing = isinstance(fault.__cause__, ImportError)
            self._drop(
                key,
                f"{fault.__cause__}; install it with `pip install {key}`"
                if missing
                else str(fault),
            )

    def _drop(self, key: str, reason: str) -> None:
        self._active.pop(key, None)
        _LOGGER.warning(
            "The tracker %s is turned off after an error (%s). Training continues, and metrics.jsonl "
            "contains all metrics.",
            key,
            reason,
        )


def headline(metrics: dict[str, Any]) -> dict[str, str]:
    """The metrics worth a place on the progress line: label -> formatted value.

    Validation wins over training where both have a value of the same name.
    """
    shown: dict[str, str] = {}
    for ending, label, form in SHOWN:
        keys = sorted(key for key in metrics if key == ending or key.endswith(f"/{ending}"))
        # `loss` is the training loss: the validation loss has its own label.
        if ending == "loss":
            keys = [key for key in keys if key != "val/loss"]
        # A stable sort: validation first, then by name.
        keys.sort(key=lambda key: not key.startswith("val"))
        value = metrics[keys[0]] if keys else None
        if value is not None and label not in shown:
            shown[label] = form.format(value) if isinstance(value, int | float) else str(value)
    return shown


class _ConsoleSink:
    """The progress line or bar."""

    def __init__(self, stage: str, name: str, total_steps: int | None, start_step: int) -> None:
        self._progress = ProgressLine(stage, total=total_steps, start=start_step, name=name)

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        self._progress.update(step, headline(metrics))

    def episodes(self, step: int, split: str, episodes: "Sequence[Episode]") -> None:
        """The console shows no episodes."""

    def close(self) -> None:
        self._progress.close()


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in metrics.items() if isinstance(value, int | float)}


_TABLE = ("episode", "tag", "success", "stop", "score", "turns", "conversation")


def _table_rows(episodes: "Sequence[Episode]") -> list[list[Any]]:
    rows = []
    for episode in episodes:
        talk = "\n\n".join(
            f"[{message['role']}]\n{message['content']}" for message in episode.messages
        )
        # A sampled text may hold lone surrogates, which UTF-8 cannot encode.
        talk = talk.encode("utf-8", "backslashreplace").decode()
        ending = (str(episode.stop), episode.score, len(episode.turns), talk)
        rows.append([episode.episode_id, episode.tag, episode.success, *ending])
    return rows


class _TensorBoardSink:
    """Scalars and sample episodes for TensorBoard, in `<stage>/tensorboard`."""

    def __init__(self, directory: Path, start_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Drops the points of steps that an interrupted run had logged and that are now repeated.
        purge = start_step + 1 if start_step else None
        self._writer = SummaryWriter(str(directory / "tensorboard"), purge_step=purge)

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        for key, value in _numbers(metrics).items():
            self._writer.add_scalar(key, value, step)

    def episodes(self, step: int, split: str, episodes: "Sequence[Episode]") -> None:
        rows = _table_rows(episodes)
        # The table leaves out the conversations, which are long: each is logged below as a text of
        # its own.
        cells = [[printable(str(value)) for value in row[:-1]] for row in rows]
        table = Table(_TABLE[:-1], cells, right=(4, 5))
        self._writer.add_text(f"episodes/{split}", table.markdown(), step)
        for index, row in enumerate(rows):
            # Markdown shows indented text unchanged.
            indented = "\n".join("    " + line for line in row[-1].splitlines())
            self._writer.add_text(f"episodes/{split}/{index}", indented, step)

    def close(self) -> None:
        self._writer.close()


def _identity(directory: Path) -> str:
    """The id of a stage's curves. It follows from the folder, so that a resumed stage continues its
    own, and from what the archive holds, so that a new training does not continue old ones."""
    archived = len(list(directory.glob(f"{ARCHIVE}/*")))
    place = f"{directory.resolve()} {archived}" if archived else str(directory.resolve())
    return hashlib.sha256(place.encode()).hexdigest()[:16]


class _WandbSink:
    """Weights & Biases; `WANDB_MODE=offline` (wandb's own variable) keeps everything on this
    machine."""

    def __init__(self, directory: Path, stage: str, config: Any, project: str, name: str) -> None:
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
        self._run.log(_numbers(metrics), step=step)

    def episodes(self, step: int, split: str, episodes: "Sequence[Episode]") -> None:
        self._run.log(
            {
                f"episodes/{split}": self._wandb.Table(
                    columns=list(_TABLE), data=_table_rows(episodes)
                )
            },
            step=step,
        )

    def close(self) -> None:
        self._run.finish()


class _TrackioSink:
    """Trackio: a local dashboard with Weights & Biases' interface."""

    def __init__(self, directory: Path, stage: str, config: Any, project: str, name: str) -> None:
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
        self._run.log(_numbers(metrics), step=step)

    def episodes(self, step: int, split: str, episodes: "Sequence[Episode]") -> None:
        import pandas  # a dependency of trackio

        frame = pandas.DataFrame(_table_rows(episodes), columns=list(_TABLE))
        self._run.log({f"episodes/{split}": self._trackio.Table(dataframe=frame)}, step=step)

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._trackio.finish()

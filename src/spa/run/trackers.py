"""Destinations of metrics in addition to the files: the console and the trackers named in
`trainer.logger`.

Trackers are optional. A package is imported only if its tracker is requested. The first error of a
tracker turns it off with a warning, so training never stops because of a tracker.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spa.config.schema import Config, to_plain
from spa.envs.limits import EnvFault, boundary
from spa.errors import ConfigError
from spa.plugins import load_plugin, trackers
from spa.run.progress import ProgressLine
from spa.run.recorder import OpenTrackers, Sink

if TYPE_CHECKING:
    from spa.types import Episode

_LOGGER = logging.getLogger("spa.run")

SAMPLE_EPISODES = 8
"""Default number of sample episodes that trackers receive at each step with episodes."""

SHOWN = (
    # end of the metric's name, label on the console, number format
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
"""The metrics to show during a run, in order."""


def trackers_of(cfg: Config) -> OpenTrackers:
    """Return the function with which a `Stage` opens the trackers of `trainer.logger`."""
    trainer = cfg.trainer
    return trackers_named(
        trainer.logger,
        project=trainer.project_name,
        name=trainer.experiment_name,
        samples=to_plain(trainer.generations_to_log_to_wandb),
    )


def trackers_named(
    names: Sequence[str],
    *,
    project: str = "",
    name: str = "",
    samples: Mapping[str, int] | None = None,
) -> OpenTrackers:
    """Return a function that opens the named trackers for a recorder. Raises ConfigError if one is
    unknown.

    `samples` sets the number of episodes that trackers receive as a table, for each split ("train",
    "val"); by default `SAMPLE_EPISODES`.
    """
    unknown = [name for name in names if name not in trackers()]
    if unknown:
        raise ConfigError(
            f"trainer.logger: unknown tracker {', '.join(unknown)}; choose from {', '.join(trackers())}."
        )
    return partial(Sinks, names, project=project, name=name, samples=samples or {})


class Sinks:
    """All chosen destinations, each of which receives the metrics and episodes. A destination that
    fails is dropped."""

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
        own = {"directory": directory, "stage": stage, "config": config}
        own |= {"start_step": start_step, "project": project, "name": name}
        self._active: dict[str, Sink] = {}

        def open_one(key: str) -> None:
            self._active[key] = (
                _ConsoleSink(stage, name, total_steps, start_step)
                if key == "console"
                else load_plugin("trackers", key)(**own)
            )

        for key in names:
            self._guard(key, partial(open_one, key))

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Send metrics to every destination."""
        # Iterate over a copy, because `_guard` drops a destination that fails.
        for key, sink in list(self._active.items()):
            self._guard(key, lambda sink=sink: sink.log(step, metrics))

    def episodes(self, step: int, split: str, episodes: "Sequence[Episode]") -> None:
        """Send a few episodes to every destination."""
        chosen = episodes[: self._samples.get(split, SAMPLE_EPISODES)]
        if not chosen:
            return
        for key, sink in list(self._active.items()):
            self._guard(key, lambda sink=sink: sink.episodes(step, split, chosen))

    def close(self) -> None:
        """Close every destination."""
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
    """Return the metrics for the progress line as label -> formatted value.

    If validation and training both have a metric of the same name, the validation metric is shown.
    """
    shown: dict[str, str] = {}
    for ending, label, form in SHOWN:
        keys = sorted(key for key in metrics if key == ending or key.endswith(f"/{ending}"))
        # `loss` is the training loss: the validation loss has its own label.
        if ending == "loss":
            keys = [key for key in keys if key != "val/loss"]
        # The sort is stable: validation comes first, and names stay in order.
        keys.sort(key=lambda key: not key.startswith("val"))
        value = metrics[keys[0]] if keys else None
        if value is not None and label not in shown:
            shown[label] = form.format(value) if isinstance(value, int | float) else str(value)
    return shown


class _ConsoleSink:
    """Destination that shows the headline metrics on the progress line or bar."""

    def __init__(self, stage: str, name: str, total_steps: int | None, start_step: int) -> None:
        self._progress = ProgressLine(stage, total=total_steps, start=start_step, name=name)

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        self._progress.update(step, headline(metrics))

    def episodes(self, step: int, split: str, episodes: "Sequence[Episode]") -> None:
        """The console shows no episodes."""

    def close(self) -> None:
        self._progress.close()

"""Train runs, compare methods, and read what runs recorded."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from spa.api.html import show_in_notebooks
from spa.api.settings import Overrides, as_list, as_texts, value_text
from spa.config.load import load_config, seeded
from spa.config.schema import Config
from spa.errors import ConfigError, DataError
from spa.install import install_hint
from spa.plugins import load_plugin
from spa.run.files import read_lines
from spa.types import Episode

if TYPE_CHECKING:
    from spa.launch.job import Job

TrainingStage = Literal["selfplay", "sft", "ppo"]
STAGES: tuple[TrainingStage, ...] = ("selfplay", "sft", "ppo")

show_in_notebooks()


@dataclass(frozen=True)
class Run:
    """The folder of a run or of a comparison. Its contents are read on access."""

    path: Path

    @property
    def stages(self) -> tuple[Any, ...]:
        """The stages that have recorded files, each as a `StageFolder`."""
        return _opened(self.path).stages

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The logged metrics as one dict per stage and step, with the keys `stage`, `step`, and the
        names of the metrics.

        A comparison adds `method` and, with several seeds, `seed`. Non-finite values are left out.
        """
        rows = []
        for stage in self.stages:
            # The metrics of a single run have neither of these columns.
            head: dict[str, Any] = {"method": stage.arm} if stage.arm else {}
            head |= {} if stage.seed is None else {"seed": stage.seed}
            rows += [
                {"stage": stage.name, **head, "step": step, **values}
                for step, values in stage.metrics.items()
            ]
        return rows

    def to_pandas(self) -> Any:
        """Return `metrics` as a pandas DataFrame. Raises ConfigError if pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise ConfigError(
                f"Run.to_pandas needs the plot extra of spa: {install_hint('plot')} ({error})"
            ) from error
        return pandas.DataFrame(self.metrics)

    @property
    def summary(self) -> dict[str, Any]:
        """The results of a comparison (`summary.json`); empty for a single run."""
        return _opened(self.path).summary or {}

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint, a Hugging Face folder. Raises ModelError if there is none."""
        from spa.recipes.policies import find_target

        target = find_target(str(self.path))
        return Path(str(target.model))

    def episodes(
        self,
        stage: str = "ppo",
        split: str = "val",
        step: int | None = None,
        method: str | None = None,
    ) -> list[Episode]:
        """Return the recorded episodes of one step.

        Args:
            stage: `data` (self-play), `sft` or `ppo`.
            split: as in the names of the files in `trajectories/`: `val` or `train` of `ppo`,
                `generate` of `data`, `sft_eval` of `sft`.
            step: None takes the newest step of the split.
            method: a method of a comparison, for example `spa`.

        Raises DataError if there are none.
        """
        files = [
            file
            for folder in _opened(self.path).find(stage, method)
            for file in folder.trajectory_files()
            if file.split == split
        ]
        # There are separate files per seed and, unless `method` is given, per method. All of them
        # are read at the same step, by default the newest in any file.
        wanted = max((file.step for file in files), default=None) if step is None else step
        paths = [file.path for file in files if file.step == wanted]
        if not paths:
            raise DataError(
                f"{self.path} has no recorded episodes of stage {stage}, split {split}, step "
                f"{step}.{self._recorded_splits()}"
            )
        return [episode for path in paths for episode in _read(path)]

    def _recorded_splits(self) -> str:
        folders = {
            f"{folder.name}: {file.split}"
            for folder in self.stages
            for file in folder.trajectory_files()
        }
        return (
            f" Episodes were recorded for {'; '.join(sorted(folders))}."
            if folders
            else " Nothing was recorded."
        )

    def report(
        self, path: str | Path | None = None, *, format: Literal["html", "md", "png"] = "html"
    ) -> Path:
        """Write one self-contained page about the run and return its path. Default: `report.html`
        in the run."""
        return load_plugin("api", "report")(self.path, path, format)

    def _repr_html_(self) -> str:
        """Notebook view: the results of a comparison, or the last metrics of each stage."""
        return load_plugin("api", "run_html")(self)


def _opened(path: Path) -> Any:
    """Open the folder of a run as a `RunFolder`, a class of another package. Raises DataError if it
    contains no run."""
    return load_plugin("api", "open_run")(path)


def _read(path: Path) -> Iterator[Episode]:
    for _, row in read_lines(path):
        try:
            yield Episode.from_json(row)
        except (KeyError, TypeError, ValueError):
            continue  # skip only the episode of a damaged line


def load_run(path: str | Path) -> Run:
    """Open the run in a folder. Raises DataError if the folder contains no run."""
    folder = Path(path).expanduser()
    # Opening raises DataError here, if there is no run, and not when an attribute is first used.
    _opened(folder)
    return Run(folder)


def train(
    config: str | Path | Config,
    *,
    output_dir: str | Path | None = None,
    overrides: Overrides = (),
    stages: Sequence[TrainingStage] = STAGES,
    method: str = "spa",
    seed: int = 0,
    ckpt: str | int | None = None,
    from_scratch: bool = False,
) -> Run:
    """Train, and return the run. Finished stages are reused and interrupted ones resume.

    Args:
        config: name of a shipped configuration (`spa config list`), a YAML file, a folder with one,
            or a loaded configuration.
        output_dir: the folder of the run. Default: `trainer.run_dir`.
        overrides: overrides of the configuration: `{"trainer.total_training_steps": 20}` or `key=value`
            texts.
        stages: consecutive stages of `selfplay`, `sft`, `ppo`.
        method: `spa`, or a baseline that runs only PPO: `vanilla`, `vanilla_wm`, `vanilla_grid`,
            `state_estimation`. A baseline runs in its own folder inside the run's.
        seed: index of the training run, from 0. It determines all seeds and validation puzzles, as
            in `compare`.
        ckpt: the SFT checkpoint of this run from which PPO alone starts: `last` or a step. None:
            `model_path`.
        from_scratch: archive earlier work of these stages instead of reusing it.

    Raises SpaError with a message that names the key, file or model to change.
    """
    chosen = tuple(as_list("stages", stages, str))
    # The default means all stages of the method, and a baseline's only stage is PPO.
    if method != "spa" and chosen == STAGES:
        chosen = ("ppo",)
    cfg = configuration(config, output_dir, overrides, stages=chosen, method=method, seed=seed)
    cfg, jobs = plan_training(cfg, chosen, method=method, ckpt=ckpt, from_scratch=from_scratch)
    from spa.launch.start import launch

    launch(cfg, *jobs)
    return Run(Path(cfg.trainer.run_dir))


def plan_training(
    cfg: Config,
    stages: Sequence[TrainingStage],
    *,
    method: str = "spa",
    ckpt: str | int | None = None,
    from_scratch: bool = False,
) -> "tuple[Config, list[Job]]":
    """Return the configuration and the jobs that train these stages. Raises ConfigError if the
    stages, the method and the checkpoint cannot be combined.

    If the run's folder belongs to a comparison, the run continues that comparison's method `spa`.
    """
    from spa.launch.job import Job

    in_comparison = load_plugin("api", "recipe_of_comparison")
    chosen = tuple(stages)
    if method != "spa" and (chosen != ("ppo",) or ckpt is not None):
        raise ConfigError(
            f"the method {method} runs only PPO, from the base model; give no other stage and no checkpoint"
        )
    if ckpt is not None and chosen != ("ppo",):
        raise ConfigError(
            "only PPO alone can start from a checkpoint; choose the stage ppo alone, or remove the "
            "checkpoint"
        )
    # One job runs all stages. It resumes unfinished stages and reuses finished ones.
    if chosen == STAGES:
        return in_comparison(cfg), [Job(stage="run", generate_data=True if from_scratch else None)]
    # A job of a single stage archives its earlier work if `resume_mode` is `disable`; the job `run`
    # does so if `generate_data` is True.
    if from_scratch:
        cfg = replace(cfg, trainer=replace(cfg.trainer, resume_mode="disable"))
    if chosen == ("ppo",) and ckpt is not None:
        return in_comparison(cfg), [Job(stage="run", ckpt=str(ckpt), generate_data=False)]
    # With `generate_data=False` the job `run` starts PPO from the last SFT checkpoint. The job
    # `ppo` starts PPO from `model_path`.
    jobs = {
        ("selfplay",): [Job(stage="generate")],
        ("sft",): [Job(stage="sft")],
        ("ppo",): [Job(stage="ppo")],
        ("selfplay", "sft"): [Job(stage="generate"), Job(stage="sft")],
        ("sft", "ppo"): [
            Job(stage="sft"),
            Job(stage="run", generate_data=False, gate=True),
        ],
    }
    if chosen not in jobs:
        raise ConfigError(
            f"cannot run the stages {', '.join(map(str, chosen))}; choose one or more consecutive stages "
            f"of {', '.join(STAGES)}, in this order"
        )
    return cfg, jobs[chosen]


def compare(
    config: str | Path,
    *,
    methods: Sequence[str] = (),
    sweep: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | None = None,
    controls: bool = False,
    method: str | None = None,
    output_dir: str | Path | None = None,
    overrides: Overrides = (),
    parallel: int | None = None,
) -> Run:
    """Train several methods, or several values of a setting, on the same puzzles. `Run.summary` has
    the results.

    Args:
        config: name of a shipped configuration (`spa config list`), a YAML file, or a folder with
            one.
        methods: names (`spa config list methods`), or your own as `module:name`. Default:
            `compare.arms`.
        sweep: mapping from a configuration key to its values. `method` is trained with every
            combination. Stages that a key does not change are shared.
        seeds: number of full pipelines per method.
        controls: add two controls: `vanilla_wm` and `spa_shuffled`, or those of written search.
        method: the method that a sweep trains. Default: spa.
        output_dir: the folder of the comparison.
        overrides: overrides of the configuration, for all methods.
        parallel: number of training processes that run at a time without a GPU.

    Raises SpaError with a message that names what to change.
    """
    folder = load_plugin("api", "compare")(
        config,
        methods=methods,
        sweep=sweep,
        seeds=seeds,
        controls=controls,
        method=method,
        output_dir=output_dir,
        overrides=overrides,
        parallel=parallel,
    )
    return Run(folder)


def configuration(
    config: str | Path | Config,
    output_dir: str | Path | None,
    overrides: Overrides,
    *,
    stages: Sequence[TrainingStage] = STAGES,
    method: str = "spa",
    seed: int = 0,
) -> Config:
    """Return the configuration of training run number `seed` in `output_dir`. Raises a ConfigError
    that lists every problem."""
    texts = as_texts(overrides)
    if output_dir is not None:
        texts.append(f"trainer.run_dir={value_text(str(output_dir))}")
    # In a loaded configuration every `${…}` is resolved, so an override would not reach the keys
    # derived from it.
    if isinstance(config, Config) and (texts or method != "spa"):
        raise ConfigError(
            "a loaded configuration takes no overrides, output_dir or method; pass the configuration by "
            "name or path instead"
        )
    if method != "spa":
        loaded = load_plugin("api", "baseline")(str(config), texts, method)
    elif isinstance(config, Config):
        loaded = config
    else:
        loaded = load_config(config, texts, stages=[stage for stage in stages if stage in STAGES])
    return seeded(loaded, seed)

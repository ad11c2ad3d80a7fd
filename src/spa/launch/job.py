"""Jobs that a launcher starts in the same way on every rank: one stage, or a run of all stages."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from spa.config.check import StageName
from spa.config.schema import Config
from spa.distributed.world import current_world
from spa.errors import TrainingError
from spa.models.precision import precision_of, with_precision
from spa.recipes import pipeline, ppo_run, selfplay
from spa.recipes.builtin_games import warn_of_unknown_games
from spa.recipes.preflight import preflight
from spa.recipes.token_budget import with_budgets_of_device
from spa.run.manifest import result_of
from spa.run.recorder import read_metrics

JobName = Literal["run", "generate", "sft", "ppo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One stage, or all of them (`run`). The other fields are arguments of `pipeline.run` and have
    no effect for single stages."""

    stage: JobName
    ckpt: str = "last"
    generate_data: bool | None = None
    gate: bool = False

    @property
    def work(self) -> Callable[[Config], Path]:
        """The function that does the job and returns the path of its result."""
        match self.stage:
            case "run":
                return partial(
                    pipeline.run,
                    ckpt=self.ckpt,
                    generate_data=self.generate_data,
                    gate=self.gate,
                )
            case "generate":
                return selfplay.run_self_play
            case "sft":
                return pipeline.run_sft_stage
            case "ppo":
                return ppo_run.run_ppo


@contextmanager
def prepared(cfg: Config, job: Job) -> Iterator[Config]:
    """Check a job for predictable failures, and yield the configuration to run it with: `cfg` with
    precision and token budgets resolved. Raises TrainingError if code outside spa exits."""
    folders = pipeline.every_folder(cfg)
    # Rank 0 chooses for all ranks: their CPUs may differ, but all must compute in the same
    # precision.
    cfg = with_precision(cfg, current_world().broadcast(lambda: precision_of(cfg, folders)))
    cfg = with_budgets_of_device(cfg, current_world().size)
    if missing := missing_stages(cfg, job):
        # A run that lacks only PPO starts from its own SFT checkpoint, not from model_path.
        begun = job.stage == "run" and missing == ["ppo"]
        preflight(cfg, missing, None if begun else cfg.model_path, dry_run=False)
        warn_of_unknown_games([cfg])
    try:
        yield cfg
    except (SystemExit, GeneratorExit) as error:
        # The user's code (a template, tracker or function) called exit. It is reported as an error,
        # because after `sys.exit(0)` the run would look successful.
        raise TrainingError(
            f"code outside spa ended the run with {type(error).__name__}({error}). Add --debug to see "
            "where, and run the same command again to resume from the last checkpoint."
        ) from error


def lost_episodes(cfg: Config, job: Job) -> tuple[int, int]:
    """Return the number of failed episodes and of all episodes, as recorded in the metrics of the
    job's stages."""
    folders = dict(zip(("generate", "sft", "ppo"), pipeline.stage_folders(cfg), strict=True))
    lost = played = 0.0
    for folder in pipeline.every_folder(cfg) if job.stage == "run" else [folders[job.stage]]:
        for line in read_metrics(folder / "metrics.jsonl"):
            # Errors are logged under <prefix>/<tag>/errors; only episodes without an error count as
            # played.
            lost += sum(value for key, value in line.items() if key.endswith("/errors"))
            played += sum(value for key, value in line.items() if key.endswith("/episodes"))
    return int(lost), int(lost + played)


def missing_stages(cfg: Config, job: Job) -> list[StageName]:
    """The stages that a job still has to run and that must be checked beforehand, in order."""
    if job.stage != "run":
        return ["selfplay" if job.stage == "generate" else job.stage]
    if job.generate_data is False:
        return []  # PPO runs alone. It is not listed, because its checkpoint is checked later.
    names: list[StageName] = ["selfplay", "sft", "ppo"]
    done = [result_of(folder) for folder in pipeline.stage_folders(cfg)]
    from_scratch = job.generate_data is True
    return [
        name for name, result in zip(names, done, strict=True) if from_scratch or result is None
    ]

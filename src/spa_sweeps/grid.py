"""A grid of training runs that share stages. Every stage runs once, on the first free device.

The stages of a training run are in `<method>/{data,sft,ppo}`. Two stages are the same if they have
the same fingerprint. If another training run of the grid has the same stage, or if it is finished
in one of `cache_dirs`, the stage's folder becomes a link to it. So an interrupted grid can resume,
and training runs that differ only in PPO share one dataset and one world model.
"""

import logging
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from queue import Empty, SimpleQueue

from spa.config.schema import Config, GenerateConfig
from spa.config.stages import StageName
from spa.errors import ConfigError, DataError, SpaError, TrainingError
from spa.recipes import ppo_run
from spa.recipes.builtin_games import warn_of_unknown_games
from spa.recipes.imagination import check_planning
from spa.recipes.pipeline import run_selfplay_round, run_sft_round
from spa.recipes.preflight import preflight
from spa.recipes.rounds import Round, lost_checkpoint, rounds_of
from spa.recipes.token_budget import with_budgets_of_device
from spa.run.announce import StagePlan, expected_time, plan_lines, save_plan
from spa.run.console import worker_console
from spa.run.estimate import write_failures
from spa.run.files import archive_files
from spa.run.fingerprint import Fingerprint
from spa.run.hashing import fetch_content, fingerprint_of
from spa.run.manifest import (
    MANIFEST,
    Manifest,
    archive_other_work,
    is_finished,
    refuse_other_work,
    result_of,
)
from spa.run.signals import (
    dump_stacks_on_signal,
    ignore_interrupts,
    interrupts_wait,
    raise_if_asked,
    stoppable,
    stoppable_now,
    stopping_children,
)
from spa_estimates.hours import seconds_here
from spa_sweeps.live import SECONDS_BETWEEN_LOOKS, GridProgress, StageView

log = logging.getLogger("spa.sweeps")

FOLDERS: dict[StageName, str] = {"selfplay": "data", "sft": "sft", "ppo": "ppo"}
STAGE_NAMES: dict[StageName, str] = {"selfplay": "self-play", "sft": "SFT", "ppo": "PPO"}
ROWS_ONLY = (
    "shuffle_next_states",
    "states",
    "success_only",
    "val_fraction",
    "split_seed",
    "example_format",
    "coverage",
)
"""Settings of stage 1 that change only the examples made from self-play, not self-play itself."""
# Depths at which a folder is searched for finished stages. The deepest layout is
# <root>/<model>/<environment>/seed_<n>/<method>/<stage>. In that layout, stages of earlier rounds
# are not found, because they are one level deeper, in round_<n>/.
_DEPTH = "*/", "*/*/", "*/*/*/", "*/*/*/*/", "*/*/*/*/*/"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """One training run of a method with one seed."""

    folder: Path  # contains the folders of the stages
    world_model: Config | None  # configuration of stages 1 and 2; None: PPO from the base model
    ppo: Config  # configuration of stage 3

    @property
    def rounds(self) -> list[Round]:
        """The rounds of self-play and SFT. Empty if PPO starts from the base model."""
        data, sft = (self.folder / FOLDERS[stage] for stage in ("selfplay", "sft"))
        return rounds_of(self.world_model, data, sft) if self.world_model is not None else []


@dataclass(frozen=True, slots=True, kw_only=True)
class StageJob:
    """One stage to run."""

    stage: StageName
    folder: Path
    config: Config
    fingerprint: Fingerprint
    round: Round | None = None  # None for PPO
    source: Path | None = None  # folder of the previous stage; None for the first stage
    # folder of a self-play stage with the same episodes, from which this stage makes its examples
    # without playing again; None: it plays
    episodes: Path | None = None

    @property
    def init_from(self) -> Path | None:
        """Folder of the SFT stage whose checkpoint this stage starts from, or None if it starts
        from the configured model."""
        if self.round is None:
            return self.source
        return self.round.before[-1].sft if self.round.before else None

    @property
    def reads(self) -> set[Path]:
        """Resolved folders of the stages whose results this stage reads. These are the previous
        stage, the SFT stage from which it starts, and the dataset whose examples PPO replays."""
        replay = self.config.actor_rollout_ref.actor.replay
        # PPO starts from the SFT checkpoint, but its replay also needs the dataset.
        rows = self.stage == "ppo" and replay.examples and replay.source == "data"
        data = self.folder.with_name(FOLDERS["selfplay"]) if rows and self.source else None
        return {
            folder.resolve() for folder in (self.source, self.init_from, data) if folder is not None
        }

    @property
    def digest(self) -> str:
        """The digest of the stage's fingerprint."""
        return self.fingerprint.digest

    @property
    def name(self) -> str:
        """Name of the stage in messages."""
        trainer = self.config.trainer
        return f"{trainer.experiment_name}, {os.path.relpath(self.folder, trainer.run_dir)}"

    @property
    def done(self) -> bool:
        """True if the stage's own folder contains its result."""
        return self.there(self.folder)

    def there(self, folder: Path) -> bool:
        """Return whether `folder` contains the result of this stage: a finished stage with the same
        fingerprint, and all validation episodes that are read later."""
        return is_finished(folder, self.fingerprint) and not self.unread(folder)

    def unread(self, folder: Path) -> list[Path]:
        """Return the files of validation episodes that are missing in `folder` although results are
        computed from them."""
        trainer = self.config.trainer
        # Only PPO's results are read step by step. `also_test_at` is the step at which a longer
        # training run is compared with the others.
        steps = (
            {trainer.total_training_steps, trainer.also_test_at or 0} - {0}
            if self.stage == "ppo"
            else set[int]()
        )
        return [path for step in sorted(steps) if not (path := validation(folder, step)).is_file()]


def validation(folder: Path, step: int) -> Path:
    """Return the file with the episodes of a PPO stage's validation at `step`."""
    return folder / "trajectories" / f"val-{step:06d}.jsonl"


def recorded_digest(folder: Path) -> str:
    """Return the fingerprint digest of the finished stage in `folder`, or "" if there is no
    finished stage."""
    known = Manifest.read(folder)
    return known.fingerprint.digest if known is not None and known.result is not None else ""


def tasks_of(training: TrainingRun) -> list[StageJob]:
    """Return the stages of a training run in order, round by round, ending with PPO."""
    tasks: list[StageJob] = []

    def add(stage: StageName, folder: Path, cfg: Config, own: Round | None = None) -> None:
        # Each stage's fingerprint contains that of the stage before it, so a change of one stage
        # changes the fingerprints of all later stages.
        before = tasks[-1] if tasks else None
        known = fingerprint_of(cfg, stage, parent=before.fingerprint if before else None)
        source = before and before.folder
        tasks.append(
            StageJob(
                stage=stage, folder=folder, config=cfg, fingerprint=known, round=own, source=source
            )
        )

    for own in training.rounds:
        for stage, folder in own.stages:
            add(stage, folder, own.cfg, own)
    add("ppo", training.folder / FOLDERS["ppo"], training.ppo)
    return tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The stages of a grid: those with a folder of their own, and links to equal stages."""

    # stages that run or are finished in their own folder, each after the stages that it reads
    tasks: list[StageJob]
    linked: list[StageJob] = field(default_factory=list)  # stages that are links to the same stage
    # folder of a linked stage -> folder of the same stage
    links: dict[Path, Path] = field(default_factory=dict)

    def devices(self, parallel: int) -> list[str]:
        """Return one device per process (see `free_devices`). All stages have the same settings of
        devices."""
        cfg = self.tasks[0].config
        return free_devices(parallel, cfg.trainer.device, per_gpu=cfg.compare.per_gpu)

    @property
    def missing(self) -> list[StageJob]:
        """Stages that are not done, together with finished stages whose results they need but
        cannot read."""
        done = {task.folder: task for task in self.tasks if task.done}
        latest = [task for task in self.tasks if task.folder not in done]
        while latest:
            needed = {folder for task in latest for folder in task.reads}
            latest = [
                done[folder] for folder in done if folder.resolve() in needed and not _whole(folder)
            ]
            for task in latest:
                del done[task.folder]
        return [task for task in self.tasks if task.folder not in done]

    def lines(self) -> list[str]:
        """Return the lines for --dry-run, one per stage. Each tells whether the stage is done, and
        how many other stages share it or from where it is reused."""
        more = Counter(self.links.values())
        own = {task.folder for task in self.tasks}
        missing = {task.folder for task in self.missing}
        return [
            *(
                f"{task.folder}: {'to do' if task.folder in missing else 'done'} ({task.name}"
                + (f", shared with {more[task.folder]} more stages)" if more[task.folder] else ")")
                for task in self.tasks
            ),
            *(
                f"{place}: done ({target} is the same stage)"
                for place, target in self.links.items()
                if target not in own
            ),
        ]


def _whole(folder: Path) -> bool:
    """Return whether the result of a finished stage is readable. A dataset that was edited counts
    as unreadable; its stage reports the change when it runs."""
    try:
        return result_of(folder) is not None
    except DataError:
        return False


def plan_grid(trainings: Iterable[TrainingRun], cache_dirs: Sequence[Path] = ()) -> Plan:
    """Plan the stages of all training runs, so that equal stages run only once. Finished stages in
    the folders `cache_dirs` are reused through links."""
    # digest -> folder. Stages of other experiments are found by their digest, not by their folder
    # name.
    known = {digest: folder for root in cache_dirs for folder, digest in finished_stages(root)}
    plan = Plan(tasks=[])
    owners: dict[str, list[StageJob]] = {}
    played: dict[str, Path] = {}
    for task in [task for training in trainings for task in tasks_of(training)]:
        # A finished stage in the task's own folder is kept, even if the same stage is finished
        # elsewhere.
        own = recorded_digest(task.folder) and not task.folder.is_symlink()
        # The same stage in another training run of this grid takes precedence over one in
        # `cache_dirs`.
        same = [other.folder for other in owners.get(task.digest, ()) if _as_long(other, task)]
        if not same and not own and task.digest in known and task.there(known[task.digest]):
            same = [known[task.digest]]
        if same and not own:
            plan.linked.append(task)
            plan.links[task.folder] = same[0]
        else:
            owners.setdefault(task.digest, []).append(task)
            plan.tasks.append(replace(task, episodes=_episodes(task, played)))
        # Other training runs can reuse only episodes of the first round. In later rounds, every
        # training run plays with its own model.
        if _first_play(task):
            played.setdefault(
                _selfplay_digest(task.config), same[0] if same and not own else task.folder
            )
    return plan


def fetch_models(trainings: Iterable[TrainingRun]) -> None:
    """Download the models and datasets of all training runs from the Hub into the local cache, so
    that fingerprints can hash their content."""
    for training in trainings:
        if training.world_model is not None:
            fetch_content(training.world_model, "selfplay")
            fetch_content(training.world_model, "sft")
        fetch_content(training.ppo, "ppo")


def _as_long(other: StageJob, task: StageJob) -> bool:
    """Return whether another stage with the same fingerprint can replace this one. PPO stages must
    also have the same steps."""
    # The steps are compared here, because they are part of a fingerprint only if a schedule depends
    # on them: PPO can be resumed with more steps.
    trainers = [part.config.trainer for part in (other, task)]
    steps = [(trainer.total_training_steps, trainer.also_test_at) for trainer in trainers]
    return task.stage != "ppo" or steps[0] == steps[1]


def _selfplay_digest(cfg: Config) -> str:
    """Return the fingerprint digest of self-play alone, without the settings that affect only
    examples."""
    plain = {name: getattr(GenerateConfig(), name) for name in ROWS_ONLY}
    return fingerprint_of(replace(cfg, generate=replace(cfg.generate, **plain)), "selfplay").digest


def _episodes(task: StageJob, played: dict[str, Path]) -> Path | None:
    return (
        played.get(_selfplay_digest(task.config)) if _first_play(task) and not task.done else None
    )


def _first_play(task: StageJob) -> bool:
    """Return whether a stage is self-play of the first round, by the initial model."""
    return task.stage == "selfplay" and task.source is None


def finished_stages(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield (folder, digest) for each finished stage in and below `root`. Links are not
    followed."""
    for pattern in ("", *_DEPTH):
        # Sorted, so that the choice between two equal stages is deterministic.
        for mark in sorted(root.glob(f"{pattern}{MANIFEST}")):
            if not mark.parent.is_symlink() and (digest := recorded_digest(mark.parent)):
                yield mark.parent, digest


Work = Callable[[StageJob, str], tuple[int, int]]
PoolOf = Callable[[Path | None], Executor]


def own_process(errors: Path | None) -> Executor:
    """Make an executor with one worker process, which starts a fresh interpreter. Its stderr goes
    to the file `errors`, or to this process's stderr if `errors` is None.

    Each device has its own executor, because an executor with several workers ends all of them when
    one is killed.
    """
    # spawn: after a fork, CUDA is unusable if the parent has initialized it, and locks that other
    # threads held stay locked.
    return ProcessPoolExecutor(
        1,
        mp_context=get_context("spawn"),
        initializer=_begin_worker,
        initargs=(worker_console(errors),),
    )


def _begin_worker(set_console: Callable[[], None]) -> None:
    set_console()
    threading.Thread(target=_follow_parent, daemon=True).start()
    # Ctrl-C reaches the whole process group; the parent asks its workers to stop and save.
    ignore_interrupts()
    dump_stacks_on_signal()


def _follow_parent() -> None:
    """Stop this worker when its parent process has ended. A running stage saves its step first."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    # On the first signal, a running stage saves its step; an idle worker ends at once.
    os.kill(os.getpid(), signal.SIGTERM)
    while stoppable_now():
        time.sleep(1)
    os._exit(1)


def do_task(task: StageJob, device: str) -> tuple[int, int]:
    """Run one stage in this process. Returns the process id and its peak memory in bytes. If a
    signal asks it to stop, saves the work and raises StopRequested."""
    folder = task.folder
    source = task.source
    known = task.fingerprint
    own = task.round
    cfg = own.ready() if own else task.config
    # The grid chooses the device, which is not part of the fingerprint.
    cfg = with_budgets_of_device(replace(cfg, trainer=replace(cfg.trainer, device=device)))
    with stoppable():
        if own and task.stage == "selfplay":
            run_selfplay_round(own, cfg, fingerprint=known, episodes=task.episodes)
        elif own:
            run_sft_round(own, cfg, fingerprint=known)
        else:
            start = result_of(source) if source else None
            if source and start is None:
                raise TrainingError(lost_checkpoint(source))
            ppo_run.run_ppo(
                cfg,
                model_path=start and str(start),
                directory=folder,
                fingerprint=known,
                alone=False,
            )
            if gone := task.unread(folder):
                raise TrainingError(
                    f"{gone[0]} is missing. The results are computed from the file. Restore the file, or remove "
                    f"{folder} and run the same command again to train from scratch."
                )
    return os.getpid(), peak_bytes()


def peak_bytes() -> int:
    """Return the peak resident memory of this process in bytes."""
    # Linux counts ru_maxrss in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def finish_grid(
    trainings: Iterable[Iterable[TrainingRun]],
    plan: Callable[[], Plan],
    *,
    parallel: int,
    pool: PoolOf,
    work: Work,
) -> TrainingError | None:
    """Download the models of `trainings`, then call `plan` and run the missing stages of the plan.
    Returns the error if a stage failed, None otherwise."""
    fetch_models(one for parts in trainings for one in parts)
    try:
        made = plan()
        run_grid(made, devices=made.devices(parallel), pool=pool, work=work)
    except TrainingError as error:
        return error
    return None


def run_grid(
    plan: Plan,
    *,
    devices: Sequence[str],
    pool: PoolOf = own_process,
    work: Work = do_task,
    root: Path | None = None,
) -> dict[int, int]:
    """Run every missing stage of the plan, one at a time per device, each after the stages that it
    reads. Returns process id -> peak memory in bytes. The plan is saved in the folder `root`, if
    given.

    If a stage fails, only the stages that depend on it are skipped. The others continue, on fewer
    workers if one was killed. Raises TrainingError at the end if any stage failed. Raises
    ConfigError, before any work, if a folder contains work with another fingerprint or a check of a
    stage fails.
    """
    waiting = plan.missing
    peaks = dict[int, int]()
    # These checks come before any process starts, so that a mistake is found before hours of
    # training.
    check_planning(task.round.cfg for task in waiting if task.round and task.stage == "selfplay")
    for task in waiting:
        begun = task.init_from is not None
        preflight(
            task.config, (task.stage,), None if begun else task.config.model_path, dry_run=False
        )
    warn_of_unknown_games(task.config for task in waiting)
    _handle_existing_stages(plan)
    if root is not None and waiting:
        save_plan(root, _planned(plan), workers=len(devices))
    _make_links(plan.links)
    # Paths are resolved, because a stage's folder may be a link to the same stage elsewhere.
    missing = {task.folder.resolve() for task in waiting}
    running = dict[Future, tuple[StageJob, tuple[Executor, str]]]()
    ended = SimpleQueue[Future]()
    failed = dict[Path, str]()
    with (
        GridProgress(_views(plan), workers=len(devices)) as progress,
        ExitStack() as open_workers,
        stopping_children(),
    ):
        free = [
            (open_workers.enter_context(pool(progress.worker_errors)), device) for device in devices
        ]
        # Registered last, so it runs first. The table closes before the context waits for the
        # workers, which take a while to save.
        open_workers.callback(progress.close)
        while waiting or running:
            # Stages that depend on a failed one are skipped, and listed as such in the final error.
            for task in [task for task in waiting if _needs(task) & failed.keys()]:
                waiting.remove(task)
                failed[task.folder.resolve()] = (
                    f"{task.name}: skipped, because an earlier stage failed"
                )
            for task in [task for task in waiting if not _needs(task) & missing][: len(free)]:
                waiting.remove(task)
                worker, device = free.pop(0)
                # The worker's interpreter starts here. It would print a traceback if Ctrl-C
                # interrupted it.
                with interrupts_wait():
                    future = worker.submit(work, task, device)
                running[future] = (task, (worker, device))
                future.add_done_callback(ended.put)
            # If every worker was killed, nothing can run. Without this check, the loop would never
            # end.
            if not running and not free:
                failed |= {
                    task.folder.resolve(): f"{task.name}: not started, because every worker process was killed"
                    for task in waiting
                }
                break
            progress.update(
                running={task.folder.resolve() for task, _ in running.values()},
                unfinished=missing,
                failed=failed,
            )
            for future in _next_ended(ended) if running else ():
                task, place = running.pop(future)
                # A killed worker leaves a broken pool, so its device is not used again.
                if not isinstance(future.exception(), BrokenProcessPool):
                    free.insert(0, place)
                if problem := _problem(future):
                    failed[task.folder.resolve()] = f"{task.name}: {problem}"
                    if root is not None:
                        write_failures(root, [*failed.values()])
                    log.warning("%s failed: %s", task.name, problem)
                else:
                    missing.discard(task.folder.resolve())
                    pid, peak = future.result()
                    # A worker runs several stages, so its peak memory is the maximum over them.
                    peaks[pid] = max(peak, peaks.get(pid, 0))
        progress.update(running=(), unfinished=missing, failed=failed)
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(plan.tasks)} stages failed. The results of the other stages are kept. Run the same "
            "command again to retry the failed stages:\n  " + "\n  ".join(failed.values())
        )
    return peaks


def time_of(plan: Plan, each: Callable[[StageJob], float], *, workers: int) -> float:
    """Estimate the time until the last missing stage ends. The function `each` returns the time of
    one stage, in any unit; the result has the same unit.

    Simulates the order of `run_grid`. Stages of one training run are sequential. Stages of
    different training runs run in parallel on `workers` workers.
    """
    waiting = plan.missing
    unfinished = {task.folder.resolve() for task in waiting}
    running: list[tuple[float, StageJob]] = []
    now = 0.0
    while waiting or running:
        ready = [task for task in waiting if not _needs(task) & unfinished]
        for task in ready[: workers - len(running)]:
            waiting.remove(task)
            running.append((now + each(task), task))
        now = min(end for end, _ in running)
        unfinished -= {task.folder.resolve() for end, task in running if end == now}
        running = [(end, task) for end, task in running if end > now]
    return now


def announce(plan: Plan, *, workers: int) -> list[str]:
    """Describe a plan before it starts: one line per method, then the expected time if it is known.
    Empty if no stage is missing."""
    if not plan.missing:
        return []
    methods = _planned(plan)
    left = expected_time(methods, workers=workers)
    return [*plan_lines(methods), *(() if left is None else (f"These stages take {left}.",))]


def _planned(plan: Plan) -> dict[str, list[StagePlan]]:
    """Return method -> its stages, each of which is marked as run or reused."""
    missing = {task.folder for task in plan.missing}
    linked = {task.folder for task in plan.linked}
    methods: dict[str, list[StagePlan]] = {}
    for view in _views(plan):
        stages = methods.setdefault(view.method, [])
        if view.folder in linked:
            source = plan.links[view.folder]
            why = f"the same stage as {source}"
            stages.append(StagePlan(view.name, source, "reuse", why))
        else:
            action = "run" if view.folder in missing else "reuse"
            stages.append(StagePlan(view.name, view.folder, action, expected=view.expected))
    return methods


def _next_ended(ended: SimpleQueue[Future]) -> list[Future]:
    """Return the next finished future in a list. Empty if none finishes within a second.

    `concurrent.futures.wait` is not used, because it holds locks of the futures. Ctrl-C would leave
    them locked, and the executors could never end.
    """
    # If a signal arrives during a future's callback, Python drops the exception that the signal
    # handler raises. So the stop request is checked here.
    raise_if_asked()
    with suppress(Empty):
        return [ended.get(timeout=SECONDS_BETWEEN_LOOKS)]
    return []


def _views(plan: Plan) -> list[StageView]:
    """Return the stages of every method in order, for the progress table. If there are several
    rounds, the names of self-play and SFT stages end with the number of the round."""
    methods: dict[str, list[StageJob]] = {}
    for task in [*plan.tasks, *plan.linked]:
        methods.setdefault(task.config.trainer.run_dir, []).append(task)
    root = os.path.commonpath([os.path.dirname(folder) for folder in methods]) if methods else ""
    missing = bool(plan.missing)
    views = []
    for folder, tasks in methods.items():
        rounds = max((task.round.number for task in tasks if task.round), default=1)

        def position(task: StageJob, last: int = rounds) -> tuple[int, int]:
            # PPO is sorted after the last round.
            own = task.round.number if task.round else last + 1
            return own, list(FOLDERS).index(task.stage)

        for task in sorted(tasks, key=position):
            number = f" {task.round.number}" if task.round and rounds > 1 else ""
            name = STAGE_NAMES[task.stage] + number
            views.append(
                StageView(
                    os.path.relpath(folder, root),
                    name,
                    task.folder,
                    # By default, each process of a grid uses one thread.
                    seconds_here(task.config, task.stage, threads=task.config.trainer.threads or 1)
                    if missing
                    else None,
                )
            )
    return views


def _handle_existing_stages(plan: Plan) -> None:
    """Archive existing stages, including linked ones, that were made with other settings, and log a
    warning. If the run does not start from scratch, raise ConfigError instead. Links to incomplete
    stages are removed. Differences that change only the last digits of results are logged once."""
    # Both ends of a link are checked, because either folder may contain other work.
    stages = {task.folder: task.fingerprint for task in plan.tasks}
    for task in plan.linked:
        target = plan.links[task.folder]
        stages.setdefault(target, task.fingerprint)
        if task.folder.resolve() != target.resolve():
            stages[task.folder] = task.fingerprint
    if any(task.config.trainer.resume_mode == "disable" for task in plan.tasks):
        archive_other_work(stages.items())
    refuse_other_work(list(stages.items()))
    for task in plan.missing:
        if task.folder.is_symlink():  # the target is incomplete; only the link is removed
            task.folder.unlink()


def _needs(task: StageJob) -> set[Path]:
    return task.reads | ({task.episodes.resolve()} if task.episodes is not None else set())


def _make_links(links: dict[Path, Path]) -> None:
    """Create `links`, which map the path of each link to its target. Links are relative, so that a
    grid can be moved as a whole. Existing files at the path of a link are archived."""
    for place, target in links.items():
        if place.resolve() == target.resolve():
            continue
        if place.is_symlink():
            place.unlink()
        elif place.exists():
            archive_files(place.parent, [place])
        place.parent.mkdir(parents=True, exist_ok=True)
        # The target is relative to the real folder of the link, since `place.parent` may itself
        # contain a link.
        place.symlink_to(os.path.relpath(target, place.parent.resolve()), target_is_directory=True)


def _problem(future: Future) -> str:
    """Return why a stage failed, or "" if it did not. Re-raises errors that the user cannot fix."""
    error = future.exception()
    if error is None:
        return ""
    if isinstance(error, SpaError | MemoryError):
        return str(error) or "out of memory"
    if isinstance(error, BrokenProcessPool):
        return (
            "the worker process was killed, probably for lack of memory. Run fewer processes at a time: lower "
            "--parallel, compare.parallel or compare.per_gpu."
        )
    raise error


def free_devices(parallel: int, wanted: str = "auto", *, per_gpu: int = 1) -> list[str]:
    """Return one device per process: every GPU `per_gpu` times, or the CPU `parallel` times if
    there is no GPU. If `wanted` is a single GPU such as `cuda:1`, only this GPU is used.

    Raises ConfigError if `parallel` is below 1.
    """
    if parallel < 1:
        raise ConfigError(f"--parallel is {parallel}. Give a number of at least 1.")
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() and wanted != "cpu" else 0
    # `cuda:1` names one GPU; the others are left to other work.
    if ":" in wanted:
        return [wanted] * per_gpu
    each = [f"cuda:{index}" for index in range(gpus)] * per_gpu
    return each or [wanted if wanted == "cuda" else "cpu"] * parallel

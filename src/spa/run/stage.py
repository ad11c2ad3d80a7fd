"""One stage of a run: its folder, fingerprint, record and checkpoints, and how it resumes and
stops.

    with Stage(cfg, folder, fingerprint, keep=2) as stage:
        if stage.result is None:                       # not finished yet
            model = load(stage.resume_from)            # None: from scratch
            for step in stage.steps(total):            # resumes here; stops here when asked to
                with stage.interruptible("rollout"):   # also stops here, since this can be repeated
                    episodes = play()
                metrics = train(model, episodes)
                stage.commit(step, metrics, episodes, model)
            stage.finish()

A run that is killed at any moment and restarted with the same command ends with the same files as
an uninterrupted run, byte for byte, except timings. `commit` therefore writes in a fixed order:
episodes, the line of metrics, and last the checkpoint (or, for self-play, the size of the batch's
file in the manifest). Records after the last checkpoint or manifest entry are removed when the
stage opens again. With several ranks, every method is called on all ranks; rank 0 decides and
writes.
"""

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from spa.config.schema import Config
from spa.distributed.world import World, current_world
from spa.errors import ConfigError, ModelError
from spa.install import commit
from spa.models.lora import ADAPTER
from spa.run import signals
from spa.run.checkpoint import (
    archive_later_checkpoints,
    damage,
    last_checkpoint,
    latest_checkpoint,
    load_note,
    prune_checkpoints,
    save_checkpoint,
    step_of,
)
from spa.run.console import log_file
from spa.run.copies import mirror_of
from spa.run.files import LOST, METRICS, OLDER_COPIES, remove_leftovers
from spa.run.fingerprint import Fingerprint, differences
from spa.run.lock import run_lock
from spa.run.manifest import (
    DATA_FILES,
    SUMMARY,
    VALIDATIONS,
    Manifest,
    archive_work,
    batch_file,
    refuse_other_work,
    result_of,
    sizes_of,
    whole_batches,
)
from spa.run.recorder import OpenTrackers, Recorder
from spa.run.signals import StopRequested, stop_asked, stop_now, stoppable, uninterrupted
from spa.types import tokens_in

if TYPE_CHECKING:
    from spa.types import Episode, Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Content of a checkpoint. Model, tokenizer and critic have a method `save_pretrained`; `state`
    consists of plain values and tensors."""

    model: Any
    tokenizer: Any
    critic: Any = None
    state: Mapping[str, Any] = field(default_factory=dict)


class Trained(Protocol):
    """An object that `Stage.commit` can save."""

    def snapshot(self) -> Snapshot:
        """Return everything that is needed to resume. Collective: all ranks call it."""
        ...


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory for this run, and stop on SIGTERM and Ctrl-C without losing work.

    With several ranks, rank 0 takes the lock. No rank stops alone: all ranks stop together, between
    two steps.
    """
    world = current_world()
    with (
        stoppable(),
        run_lock(directory) if world.is_main else nullcontext(),
        # With several ranks, a signal is only recorded: if one rank stopped alone, the others would
        # wait for it in a collective.
        uninterrupted() if world.size > 1 else nullcontext(),
    ):
        yield
        # If a stop was requested during the last step, the ranks agree here, before `uninterrupted`
        # raises on only some of them.
        stop_together()


def stop_together() -> None:
    """Stop all ranks if any of them was asked to stop. Collective: every rank must call it."""
    world = current_world()
    if world.size > 1 and world.any(stop_asked()):
        stop_now()


@dataclass
class Stage:
    """Context manager for the work on one stage, used on every rank; see the module docstring.

    Args:
        first: the step before the stage's first step.
        total: the last step, if known in advance.
        keep: number of checkpoints to keep.
        resume_path: the checkpoint to resume from, of another run or an earlier one of this run.
        again: run the stage even if it is finished.
        trackers: function that opens the trackers of the record.

    Attributes:
        result: path of the finished stage's result; None while there is work to do.
        resume_from: the checkpoint to load; None to start from scratch.
        step: the last committed step.
    """

    cfg: Config
    folder: Path
    fingerprint: Fingerprint
    _: KW_ONLY
    first: int = 0
    total: int | None = None
    keep: int | None = None
    resume_path: str | None = None
    again: bool = False
    trackers: OpenTrackers | None = None
    result: Path | None = field(default=None, init=False)
    resume_from: Path | None = field(default=None, init=False)
    step: int = field(default=0, init=False)
    _manifest: Manifest = field(init=False)
    _saved_step: int = field(default=0, init=False)
    _save_every: int = field(default=0, init=False)
    _trained: Trained | None = field(default=None, init=False)
    _loop: Generator[int] | None = field(default=None, init=False)
    _world: World = field(default_factory=current_world, init=False)
    _opened: ExitStack = field(default_factory=ExitStack, init=False)
    _started: float = field(default_factory=time.monotonic, init=False)
    _earlier: float = field(default=0.0, init=False)  # seconds of earlier starts

    def __post_init__(self) -> None:
        self._manifest = Manifest(fingerprint=self.fingerprint, commit=commit())

    def __enter__(self) -> Self:
        """Inspect the folder, and prepare it if there is work to do.

        Raises ConfigError, before anything is written, if the folder contains work of another
        fingerprint; ModelError if `resume_path` cannot be used; and TrainingError if another
        process has locked the folder.
        """
        # This check neither takes the lock nor writes, so that finished stages can be reused at any
        # time.
        self.result = self._on_rank_0(self._find_result)
        if self.result is not None:
            return self
        scratch = self.cfg.trainer.resume_mode == "disable"
        if scratch and self._world.is_main and self.folder.is_symlink():
            # The link is removed before locking, because the lock file would be created in the
            # folder of the other run.
            archive_work(self.folder)
        with ExitStack() as opening:
            opening.enter_context(locked(self.folder))
            if self._world.is_main:
                opening.enter_context(log_file(self.folder / "log.txt"))
            if self._world.broadcast(self._fetch):
                # The fetched copy may belong to a finished stage.
                self.result = self._on_rank_0(self._find_result)
            if self.result is None:
                self.resume_from = self._on_rank_0(self._prepare)
                self.step = self._saved_step = self._world.broadcast(self._last_step)
            # Opening succeeded, so `__exit__` will close the log file and release the lock.
            self._opened = opening.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """If the process was asked to stop, save a checkpoint of the committed steps. Then close
        the record and unlock the folder."""
        try:
            # After an error in the loop's body, the generator is still inside `uninterrupted`,
            # which would postpone signals until Python collects the generator.
            if self._loop is not None:
                self._loop.close()
            if (
                # StopRequested is raised between two steps or in `interruptible`, before an update,
                # so the model has the weights of the last commit. After any other error, the model
                # may be partly updated.
                isinstance(error, StopRequested)
                and self._trained is not None
                and self.step > self._saved_step
            ):
                with uninterrupted():
                    error.saved = str(self._save(self._trained, preemption=True))
            elif (
                isinstance(error, StopRequested) and self._loop is not None and self._world.is_main
            ):
                with uninterrupted():
                    self._record()
        finally:
            try:
                # Do not access `self.recorder` if it does not exist yet: the property would create
                # a recorder and its files.
                if "recorder" in self.__dict__:
                    # Without this, the boundary around a tracker would raise StopRequested again,
                    # without the path of the saved checkpoint.
                    with uninterrupted():
                        self.recorder.close()
            finally:
                self._opened.__exit__(kind, error, trace)

    @cached_property
    def recorder(self) -> Recorder:
        """The record: metrics, timings, episodes, messages. Created on first use, so that a start
        with nothing to do writes nothing."""
        return Recorder(
            self.folder,
            stage=self.fingerprint.stage,
            config=self.cfg,
            trackers=self.trackers,
            total_steps=self.total,
            enabled=self._world.is_main,
            # None: nothing is committed here, so an existing record in the folder is archived.
            resume_step=self.step if self.step > self.first else None,
            stall_timeout_s=self.cfg.trainer.stall_timeout_s,
        )

    def steps(self, total: int, *, save_every: int = 0) -> Iterator[int]:
        """Yield the remaining steps up to `total`. The body of the loop must commit each step. A
        stop request takes effect at the end of the body, or within an `interruptible` block.

        A checkpoint is saved every `save_every` steps (0: never) and at the last step.
        """
        if self.resume_from:
            self._refuse_finished(self.resume_from, total)
        self.total = total
        self._save_every = save_every
        self._loop = self._steps(total)
        return self._loop

    def _steps(self, total: int) -> Generator[int]:
        for step in range(self.step + 1, total + 1):
            # The body of the caller's loop runs during the yield, so signals are postponed to its
            # end.
            with uninterrupted():
                yield step
            stop_together()

    @property
    def lost_episodes(self) -> Path:
        """Path of the file that lists failed episodes to skip."""
        return self.folder / LOST

    def due(self, step: int, every: int) -> bool:
        """Return whether an action that happens every `every` steps, and at the last step, is due
        at `step`."""
        return step == self.total or (every > 0 and step % every == 0)

    def timer(self, name: str) -> AbstractContextManager[None]:
        """Add the seconds of the `with` block to `timing_s/<name>`, written with the next line of
        metrics."""
        return self.recorder.timer(name)

    @contextmanager
    def interruptible(self, name: str) -> Iterator[None]:
        """Time a block of work that can be repeated after resuming, and let a stop request
        interrupt it. With several ranks the block is not interrupted, because ranks stop
        together."""
        with self.timer(name), signals.interruptible() if self._world.size == 1 else nullcontext():
            yield

    def commit(
        self,
        step: int,
        metrics: "Metrics",
        episodes: "Sequence[Episode]" = (),
        trained: Trained | None = None,
        *,
        tokens: int | None = None,
    ) -> None:
        """Finish a step: write its episodes and metrics, and save a checkpoint of `trained` if one
        is due.

        Without `trained` (self-play), the step is done once its episodes are recorded in the
        manifest. `tokens` is the number of processed tokens, for throughput; with episodes, their
        tokens are counted instead.
        """
        if episodes:
            tokens = tokens_in(episodes)
            # Self-play trains nothing; its episodes go to the files that `batch_file` names.
            self.recorder.trajectories(step, "generate" if trained is None else "train", episodes)
        self.recorder.log(step, metrics, tokens=tokens)
        self.step = step
        # If a stop is requested after this line, `__exit__` saves this step.
        self._trained = trained
        if trained is not None and self.due(step, self._save_every):
            self._save(trained)
        elif trained is None and self._world.is_main:
            # Self-play has no checkpoints. A batch counts as done when the manifest has its file's
            # size.
            self._record(batch_file(step))

    def finish(self) -> Path:
        """Mark the stage as finished, and return its result: the newest checkpoint, or the folder
        for self-play."""
        played = self.fingerprint.stage == "selfplay"
        self.result = self.folder if played else last_checkpoint(self.folder, self._world)
        if self._world.is_main:
            # The path is relative, so that a finished run can be moved.
            result = self.result.relative_to(self.folder).as_posix()
            self._manifest = replace(self._manifest, result=result)
            self._record(DATA_FILES, VALIDATIONS, SUMMARY, METRICS)
            # Checkpoints are copied when they are saved; the data of self-play is copied only here.
            if played and (mirror := mirror_of(self.cfg, self.folder)):
                mirror.copy_files(self.folder, sorted(self._manifest.sizes))
        # Rank 0 has written the result; the next stage reads it on every rank.
        self._world.barrier()
        return self.result

    def _record(self, *patterns: str) -> None:
        """Write the manifest with the sizes of the matching files and the time so far."""
        sizes = {**self._manifest.sizes, **sizes_of(self.folder, *patterns)}
        seconds = round(self._earlier + time.monotonic() - self._started, 1)
        self._manifest = replace(self._manifest, sizes=sizes, seconds=seconds)
        self._manifest.write(self.folder)

    def _save(self, trained: Trained, *, preemption: bool = False) -> Path:
        """Save a checkpoint and return its folder. All ranks gather the content, and rank 0 writes
        it."""
        # All ranks call this: gathering sharded weights is a collective.
        snapshot = trained.snapshot()
        if self._world.is_main:
            notes = {
                "fingerprint": self.fingerprint.to_json(),
                # Resuming compares this size, to detect a metrics.jsonl that lost lines; see
                # `_warn_of_lost_lines`.
                "metrics_bytes": (self.folder / METRICS).stat().st_size,
            }
            save_checkpoint(
                self.folder,
                self.step,
                model=snapshot.model,
                tokenizer=snapshot.tokenizer,
                critic=snapshot.critic,
                state={**snapshot.state, **notes},
                keep=self.keep,
                preemption=preemption,
            )
            self._record()
            if mirror := mirror_of(self.cfg, self.folder):
                mirror.copy(self.folder, keep=self.keep)
        self._saved_step = self.step
        self._world.barrier()
        return self.folder / f"global_step_{self.step}"

    def _on_rank_0(self, find: Callable[[], Path | None]) -> Path | None:
        """Call `find` on rank 0 only, and return its result on every rank."""
        path = self._world.broadcast(lambda: str(find() or ""))
        return Path(path) if path else None

    def _find_result(self) -> Path | None:
        """Return the path of the stage's result if nothing is left to do, otherwise None."""
        if self.again:
            return None
        refuse_other_work([(self.folder, self.fingerprint)])
        result = result_of(self.folder)
        # A finished stage is opened again and trained further if `total` asks for more steps.
        if result is None or step_of(result) < (self.total or 0):
            return None
        if self.total and step_of(result) > self.total:
            log.warning(
                "%s has %d steps, more than the %d of this command, and is kept. For fewer steps, choose another "
                "folder with trainer.run_dir.",
                result,
                step_of(result),
                self.total,
            )
        return result

    def _fetch(self) -> bool:
        """Remove leftovers of killed processes (with `resume_mode=disable`, archive all work). Then
        fetch the stage's copies if they are newer than the local work; return whether any were
        fetched."""
        scratch = self.cfg.trainer.resume_mode == "disable"
        if scratch:
            archive_work(self.folder)
        remove_leftovers(self.folder)
        mirror = mirror_of(self.cfg, self.folder)
        older = (self.folder / OLDER_COPIES).exists()
        # If `resume_path` names a checkpoint of this folder, no later copy may replace it.
        named = self.resume_path is not None and self._is_own(Path(self.resume_path).expanduser())
        if mirror is None or scratch or older or named:
            return False
        # Training keeps its work in checkpoints, self-play in complete batches of episodes.
        newest = latest_checkpoint(self.folder)
        if newest is None:
            begun = whole_batches(self.folder, self.first) > self.first
            return not begun and mirror.fetch(self.folder)
        # Copies of another run at the same URL do not replace the work that is here.
        known = mirror.manifest().get("fingerprint")
        if known and differences(Fingerprint.from_json(known), self.fingerprint):
            return False
        return mirror.fetch(self.folder, after=step_of(newest))

    def _prepare(self) -> Path | None:
        """Archive work that is no longer needed, and write the manifest; return the checkpoint to
        resume from, or None."""
        checkpoint = latest_checkpoint(self.folder)
        known = Manifest.read(self.folder)
        named = Path(self.resume_path).expanduser() if self.resume_path else None
        # If `resume_path` names a checkpoint of another run, this folder's own checkpoints take
        # precedence, so that repeating the command resumes its own work. If it names a checkpoint
        # of this folder, later ones are archived, unless the run has already resumed from it.
        own = named.name if named and self._is_own(named) else ""
        resumed = own and known is not None and known.result is None and known.rewound_to == own
        self._manifest = replace(self._manifest, rewound_to=own)
        if named and (checkpoint is None or (own and not resumed)):
            checkpoint = self._usable(named)
        # Checked again under the lock: another process may have worked here since the first check.
        refuse_other_work([(self.folder, self.fingerprint)])
        archive_later_checkpoints(self.folder, step_of(checkpoint) if checkpoint else self.first)
        prune_checkpoints(self.folder, self.keep)
        if checkpoint and checkpoint.parent == self.folder:
            _warn_of_lost_lines(checkpoint)
        # The sizes of an earlier manifest are kept only if it has the same fingerprint. A failed
        # start may have left a manifest for other settings, which describes other files.
        if known is not None and not differences(known.fingerprint, self.fingerprint):
            # The size of metrics.jsonl is dropped, because the file grows again.
            sizes = {name: size for name, size in known.sizes.items() if name != METRICS}
            self._manifest = replace(self._manifest, sizes=sizes)
            self._earlier = known.seconds
        self._record()
        return checkpoint

    def _is_own(self, checkpoint: Path) -> bool:
        return checkpoint.resolve().parent == self.folder.resolve()

    def _usable(self, named: Path) -> Path:
        """Return `named`, the checkpoint of `resume_path`. Raises ModelError or ConfigError if this
        stage cannot resume from it."""
        problem = damage(named) or (
            "" if (named / "state").is_dir() else "the folder state/ is missing"
        )
        if problem:
            raise ModelError(
                f"training cannot resume from {named} ({problem}). Name a global_step_N folder that spa "
                "wrote, or start from the weights alone with model_path=FOLDER."
            )
        stage = self.fingerprint.stage
        if (other := load_note(named, "fingerprint")["stage"]) != stage:
            raise ModelError(
                f"{named} is a checkpoint of {other}, so {stage} cannot resume from it. Start from its "
                f"weights with model_path={named}."
            )
        model = self.cfg.sft.model if stage == "sft" else self.cfg.actor_rollout_ref.model
        if (named / ADAPTER).is_dir() != (model.lora_rank > 0):
            key = "sft.model" if stage == "sft" else "actor_rollout_ref.model"
            here, wanted = (
                ("no LoRA adapters", "0")
                if model.lora_rank > 0
                else ("LoRA adapters", "the rank that they were trained with")
            )
            raise ModelError(f"{named} has {here}. Set {key}.lora_rank to {wanted}.")
        if self.total is not None:
            self._refuse_finished(named, self.total)
        return named

    def _refuse_finished(self, named: Path, total: int) -> None:
        """Raise ConfigError if the checkpoint `named` is of another run and already has `total`
        steps or more."""
        step = step_of(named)
        if not self._is_own(named) and step >= total:
            raise ConfigError(
                f"{named} is at step {step} already, and training ends at step {total}. Set "
                f"total_training_steps above {step}."
            )

    def _last_step(self) -> int:
        return (
            step_of(self.resume_from)
            if self.resume_from
            else whole_batches(self.folder, self.first)
        )


def _warn_of_lost_lines(checkpoint: Path) -> None:
    record = checkpoint.parent / METRICS
    with suppress(OSError, ValueError):
        size = record.stat().st_size if record.exists() else 0
        if size < load_note(checkpoint, "metrics_bytes"):
            log.warning(
                "%s has lost lines since %s was saved, so curves have gaps", record, checkpoint.name
            )

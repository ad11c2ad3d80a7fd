"""Read run directories: the stages of a run, their records, and the run's summary.

The layout is `runs/<name>/{data,sft,ppo}`. With several methods it is
`runs/<name>/<arm>/{data,sft,ppo}`, and with several seeds
`runs/<name>/seed_<s>/<arm>/{data,sft,ppo}`. Earlier rounds of self-play are in
`round_<n>/{data,sft}`, and their stages are named `round_<n> data` and `round_<n> sft`. Files may
grow while they are read. This module writes nothing.
"""

import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml

from spa.errors import DataError, NoRunError
from spa.run.files import MANIFEST, read_lines, read_object
from spa.run.lock import LOCK
from spa_report.reading_shape import is_head, is_summary

log = logging.getLogger(__name__)


# Folders in which no stage is searched: hidden ones, checkpoints, evaluations, archives and
# records.
_SKIPPED = re.compile(
    r"\..*|global_step_.*|eval|previous|trajectories|token_scores|tensorboard|wandb"
)
_ROUND = re.compile(r"round_\d+")
# Matches names such as `val-000050.jsonl`: the split and the step, padded to six or more digits.
_FILE = re.compile(r"^(.+)-(\d{6,})\.jsonl$")
_SEED = re.compile(r"seed_(\d+)")
# The deepest layout: seed_<s>/<method>/round_<n>/<stage>.
_MAX_DEPTH = 4
STAGES = ("generate", "data", "sft", "ppo", "eval")
"""The stages of a method, in order of execution."""


@dataclass(frozen=True)
class TrajectoryFile:
    """A trajectory file, which has the episodes of one split (such as `val`) at one step."""

    path: Path
    split: str
    step: int


@dataclass(frozen=True)
class StageFolder:
    """One stage directory of a run. `arm` is its method, or "" if the run has no method
    directories. `seed` is its training seed, or None if the run has no seed directories."""

    path: Path
    name: str
    arm: str
    seed: int | None

    @cached_property
    def metrics(self) -> dict[int, dict[str, float]]:
        """The metrics of each step by name. Non-finite values are omitted."""
        return _by_step(self.path / "metrics.jsonl")

    @cached_property
    def timings(self) -> dict[int, dict[str, float]]:
        """The timings of each step by name: durations in seconds, memory and load."""
        return _by_step(self.path / "timings.jsonl")

    @property
    def label(self) -> str:
        """Method, seed and stage as text."""
        seed = "" if self.seed is None else f"seed {self.seed} "
        return f"{self.arm} {seed}{self.name}".strip()

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The content of `manifest.json`. Empty if there is none."""
        return read_object(self.path / MANIFEST)

    @property
    def result(self) -> str | None:
        """The result's path relative to the stage's folder, or None until the stage is finished."""
        return self.manifest.get("result")

    @property
    def evaluation(self) -> Path:
        """The path of the JSON file that `spa eval` writes next to the folder of its episodes."""
        return self.path.with_name(f"{self.path.name}.json")

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of `config.yaml`. Empty if there is none."""
        path = self.path / "config.yaml"
        if not path.exists():
            return {}
        # The modification time is part of the cache key, so a rewritten file is read again.
        return _read_config(path, path.stat().st_mtime_ns)

    def trajectory_files(self) -> list[TrajectoryFile]:
        """The trajectory files, ordered by step."""
        files = [
            TrajectoryFile(path, match[1], int(match[2]))
            for path in (self.path / "trajectories").glob("*.jsonl")
            if (match := _FILE.match(path.name)) and path.is_file()
        ]
        return sorted(files, key=lambda file: (file.step, file.split))


# YAML is slow to parse, and the viewer lists all runs every few seconds.
@lru_cache(maxsize=1024)
def _read_config(path: Path, changed: int) -> dict[str, Any]:
    # CSafeLoader would be faster, but libyaml crashes on deep nesting and rejects some escapes.
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8", errors="replace"))
    except yaml.YAMLError as error:
        raise DataError(
            f"{path} is not valid YAML: {error}. Correct the file, or run the stage again."
        ) from error
    return loaded if isinstance(loaded, dict) else {}


@dataclass(frozen=True)
class RunFolder:
    """A run directory with its stages."""

    path: Path
    stages: tuple[StageFolder, ...]
    parents: int = 0
    """Number of parent folders that are part of the run's name."""

    @property
    def name(self) -> str:
        """The directory's name, preceded by the parent folders that are needed to distinguish
        runs."""
        return "/".join(self.path.resolve().parts[-1 - self.parents :])

    @cached_property
    def summary(self) -> dict[str, Any] | None:
        """The summary of a comparison, or None if there is none. Raises DataError if it is
        invalid."""
        path = self.path / "summary.json"
        if not path.exists():
            return None
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path} is not valid JSON: {error}. Remove it, or run the comparison again."
            ) from error
        # Self-play has a different summary in its folder, which is not a result.
        if isinstance(loaded, dict) and "played" in loaded:
            return None
        if not is_summary(loaded):
            raise DataError(
                f"{path} is not the summary of a run. Remove it, or run the comparison again."
            )
        return loaded

    def arms(self) -> list[str]:
        """The methods that have a stage or a result in the summary, in the order of a report."""
        names = {stage.arm for stage in self.stages} | set((self.summary or {}).get("methods", {}))
        return sorted(names, key=lambda arm: (arm_rank(arm), arm))

    def find(self, stage: str, arm: str | None = None) -> list[StageFolder]:
        """The stages with this name, ordered by method and seed. With `arm`, only stages of
        this method are returned."""
        matches = [item for item in self.stages if item.name == stage and arm in (None, item.arm)]
        return sorted(matches, key=lambda item: (item.arm, -1 if item.seed is None else item.seed))


ARM_ORDER = ("spa", "vanilla", "vanilla_wm", "spa_shuffled", "state_estimation", "vanilla_grid", "")
"""Order of methods in a report: the method under study, followed by its baselines and controls."""


def arm_rank(arm: str) -> int:
    """The position of a method in the order of a report; unknown methods come last."""
    return ARM_ORDER.index(arm) if arm in ARM_ORDER else len(ARM_ORDER)


def open_run(path: Path) -> RunFolder:
    """Open the run in the directory `path`. Raises DataError if it is not a directory or has no
    run, and OSError if no run is found because folders are unreadable."""
    if not path.is_dir():
        raise DataError(
            f"{path} is not a directory. Give the directory of a run, for example runs/demo."
        )
    unreadable: list[OSError] = []
    stages = tuple(_find_stages(path, unreadable))
    # Read `eval/` only for a run without other stages. A report on a trained run ignores it.
    if not stages and (path / "eval").is_dir():
        stages = tuple(_find_stages(path / "eval", unreadable))
    if not stages and not (path / "summary.json").exists():
        if unreadable:
            raise unreadable[0]
        raise NoRunError(
            f"{path} has no run: neither a summary.json nor a stage with metrics.jsonl or trajectories. "
            "`spa runs` lists the runs of a folder."
        )
    # Keep methods and seeds in the order of their folders, and sort the stages of each by
    # execution.
    places = {(stage.arm, stage.seed): None for stage in stages}
    order = {place: number for number, place in enumerate(places)}
    ranked = sorted(stages, key=lambda one: (order[one.arm, one.seed], *stage_rank(one)))
    return RunFolder(path, tuple(ranked))


def stage_rank(stage: StageFolder) -> tuple[float, int]:
    """Sort key for stages in the order of execution: by round, then by stage. The stages of the
    last round have no number in their names and come last."""
    numbered = re.fullmatch(r"round_(\d+) (.+)", stage.name)
    name = numbered[2] if numbered else stage.name
    number = float(numbered[1]) if numbered else float("inf")
    return number, STAGES.index(name) if name in STAGES else 0


def problem_text(error: Exception) -> str:
    """The reason why a run is unreadable, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def with_distinct_names(runs: Sequence[RunFolder]) -> list[RunFolder]:
    """Give the runs distinct names by adding parent folders where needed. Raises DataError if a run
    is given twice."""
    places = [run.path.resolve() for run in runs]
    if twice := next((path for path in places if places.count(path) > 1), None):
        raise DataError(f"the run {twice} is given twice. Give each run once.")
    # Parent folders are added until all names differ, such as `a/demo` and `b/demo`.
    parents = 0
    while len({place.parts[-1 - parents :] for place in places}) < len(places):
        parents += 1
    return [replace(run, parents=parents) for run in runs]


def is_run(path: Path) -> bool:
    """Return whether a folder is a run, rather than a folder of runs."""
    # A comparison creates its lock file before its first stage writes anything.
    marks = any((path / name).exists() for name in ("summary.json", LOCK)) or is_stage(path)
    names = {child.name for child in path.iterdir() if child.is_dir()}
    # If `eval` is the only folder, this run was only evaluated. Next to other folders, `eval` is a
    # run of its own.
    if names != {"eval"}:
        names.discard("eval")
    # A run may be named like a method. Unlike a method of a comparison, it has a lock file.
    arms = {name for name in ARM_ORDER if name in names and not (path / name / LOCK).exists()}
    return marks or bool(arms) or any(name in STAGES or _SEED.fullmatch(name) for name in names)


def is_stage(path: Path) -> bool:
    """Return whether a directory has the records of a stage."""
    return (path / "metrics.jsonl").exists() or (path / "trajectories").is_dir()


def _find_stages(root: Path, unreadable: list[OSError]) -> Iterator[StageFolder]:
    """Yield each stage of a run once, although a comparison may contain links to its own finished
    stages."""
    stages = list(_every_stage(root, unreadable))
    # If links point to a stage, keep only the paths that name a seed and a method. Several methods
    # may share a stage.
    named: dict[Path, tuple[bool, bool]] = {}
    for stage in stages:
        path = stage.path.resolve()
        named[path] = max(named.get(path, (False, False)), _named(stage))
    yield from (stage for stage in stages if _named(stage) == named[stage.path.resolve()])


def _named(stage: StageFolder) -> tuple[bool, bool]:
    """Return whether a stage's path names a seed, and whether it names a method."""
    return stage.seed is not None, stage.arm != ""


def _every_stage(root: Path, unreadable: list[OSError]) -> Iterator[StageFolder]:
    # The directory may itself be a stage, which then has the directory's name.
    if is_stage(root):
        yield _stage(root.resolve(), root.resolve().parent)
    yield from (_stage(path, root) for path in _walk(root, _MAX_DEPTH, unreadable))


def _walk(root: Path, depth: int, unreadable: list[OSError]) -> Iterator[Path]:
    """Yield the stages below a folder. Unreadable folders are skipped with a warning, and their
    errors are appended to `unreadable`."""
    for path in sorted(root.iterdir()) if depth else []:
        folders: list[Path] = []
        # A run that is being written, moved or deleted must not hide the other runs.
        try:
            if not _SKIPPED.fullmatch(path.name) and path.is_dir():
                folders = [path] if is_stage(path) else []
                folders += _walk(path, depth - 1, unreadable)
        except OSError as error:
            unreadable.append(error)
            log.warning("%s is unreadable and skipped: %s", path, problem_text(error))
        yield from folders


def _stage(path: Path, root: Path) -> StageFolder:
    # Use `absolute`, because `resolve` would follow a symbolic link, whose own name is needed.
    *parents, name = path.absolute().relative_to(root.absolute()).parts
    if parents and _ROUND.fullmatch(parents[-1]):
        name = f"{parents.pop()} {name}"
    seeds = [int(match[1]) for part in parents if (match := _SEED.fullmatch(part))]
    # Folders that are not seeds name the method. Nested names are joined.
    arm = "/".join(part for part in parents if not _SEED.fullmatch(part))
    return StageFolder(path, name, arm, seeds[-1] if seeds else None)


def _by_step(path: Path) -> dict[int, dict[str, float]]:
    table: dict[int, dict[str, float]] = {}
    for _, row in read_lines(path) if path.exists() else ():
        step = row.pop("step", None)
        if isinstance(step, int):
            values = {
                key: float(value) for key, value in row.items() if isinstance(value, int | float)
            }
            # Merge lines of the same step; later values replace earlier ones.
            table.setdefault(step, {}).update(values)
    return dict(sorted(table.items()))


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested sections into one mapping with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        # Keep an empty section as a value, so that a table of differences shows its key.
        nested = isinstance(value, dict) and value
        flat |= flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def made_with(run: RunFolder) -> dict[str, Any]:
    """Versions and hardware that the run's last stage recorded, with dotted keys. Empty if there
    are none."""
    environment: Any = {}
    for stage in run.stages:
        fingerprint = read_object(stage.path / MANIFEST).get("fingerprint")
        environment = (
            fingerprint.get("environment") or environment
            if isinstance(fingerprint, dict)
            else environment
        )
    return (
        flatten({"environment": environment})
        if isinstance(environment, dict) and environment
        else {}
    )


def parse_head(line: bytes) -> dict[str, Any]:
    """Parse the episode on this line without its messages and tokens, which make up most of it.
    Return {} if the line is not an episode.

    The line is cut at the key `messages`. That key cannot occur inside a JSON string, where its
    quotes would be escaped.
    """
    head: dict[str, Any] = {}
    # Cutting before parsing keeps lists of 100,000 episodes fast.
    for text in (line.partition(b',"messages":[')[0] + b"}", line):
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            # The keys are in another order, or the line is damaged or still being written.
            continue
        if is_head(row):
            # The error of a failed episode is after the messages, so parse the whole line.
            if row.get("stop") != "error" or "error" in row:
                return row
            head = row
    return head


def last_validation(stage: StageFolder, step: int | None = None) -> TrajectoryFile | None:
    """Find the file of the stage's last validation, at the latest at `step`. Return None if there
    is none."""
    files = [
        file
        for file in stage.trajectory_files()
        if file.split == "val" and (step is None or file.step <= step)
    ]
    return files[-1] if files else None


def heads(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the byte offset of each line of a file, and its episode without messages and tokens.
    The episode is {} if the line is damaged."""
    start = 0
    with path.open("rb") as file:
        for line in file:
            yield start, parse_head(line)
            start += len(line)

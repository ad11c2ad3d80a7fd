"""Does the working tree compute what another commit computed, to the last bit?

    python tools/golden.py BASE               every case, on both sides
    python tools/golden.py BASE --only demo   one of them (several: --only demo gae)

BASE is a commit, branch or tag. Its sources are unpacked into a temporary folder, and both sides run the shortened
trainings of golden_cases.py with this interpreter, each in a folder of its own. Then metrics without times, weights,
training examples, episodes, results and the resolved configurations of all presets are compared, after the renamings of
golden_names.yaml. One line per case: equal, differs (the first differing key with both values), fails, or absent (a
feature that BASE does not have). The exit status is 1 unless all are equal or absent.

What BASE computed is kept in ~/.cache/spa-golden, by commit, case, library versions and CPU; `--no-cache` leaves no
file.
"""

import argparse
import hashlib
import importlib.util
import io
import json
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet
import yaml
from golden_cases import CASES, Case, Command
from golden_compare import (
    Names,
    Section,
    canonical_configuration,
    canonical_metrics,
    canonical_record,
    difference,
    flatten,
)
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
TABLE = "tools/golden_names.yaml"
CACHE = Path("~/.cache/spa-golden").expanduser()
CONFIGURATIONS = Case("configurations", ())
"""The resolved configurations of all presets of a side."""
ALL = (CONFIGURATIONS, *CASES)
TIMEOUT_S = 400
UNSET = (
    "HYDRA_FULL_ERROR",
    "PYTHONHASHSEED",
    "SPA_LOG",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "MODE",
    "RENDER_MODE",
)

FORKS = multiprocessing.get_context("forkserver")
LIBRARIES = (
    "golden",
    "gymnasium",
    "hydra",
    "peft",
    "rich.table",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.run",
    "torch.distributed.tensor",
    "transformers.conversion_mapping",
    "transformers.generation",
    "transformers.models.qwen2.modeling_qwen2",
)
"""Imported once, in the process that every command is forked from. Nothing of spa: each side imports its own."""

RESULTS = (".jsonl", ".json", ".parquet", ".safetensors", ".yaml")
IGNORED_FOLDERS = ("state",)
"""Optimizer states and copies of records inside checkpoints: the case `resume` shows whether they are right."""
IGNORED_FILES = re.compile(
    r"(identity|done|manifest|plan|complete|played|template|tokenizer(_config)?|(generation_)?config)\.json|config\.yaml"
    r"|timings\.jsonl|.*\.(groups|imagined-\w+)\.jsonl"
)
"""Bookkeeping and copies of the model's own files. What is new of this kind belongs to `files: added`."""
IGNORED_KEYS = ("identity", "settings", "versions", "base_model_name_or_path", "peak_memory_gb")
"""Of a result file: the configuration, which is compared on its own, the libraries, which both sides share, and paths
of this machine."""


class CaseError(Exception):
    """A case that did not run on one side."""


@dataclass(frozen=True)
class Side:
    """One of the two trees: its name in messages, the folder with its sources, its names for commands."""

    label: str
    root: Path
    names: Names

    @property
    def environment(self) -> dict[str, str]:
        """Of its processes: its own sources, one thread, no network."""
        own = {
            "PYTHONPATH": str(self.root / "src"),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "GLOO_SOCKET_IFNAME": "lo",
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        return {key: value for key, value in os.environ.items() if key not in UNSET} | own

    def words(self, words: Sequence[str]) -> list[str]:
        """Arguments of `spa` in the names of this side."""
        plain = " ".join(word.replace(" ", "\0") for word in words if not _is_override(word))
        plain_words = [
            word.replace("\0", " ") for word in self.names["commands"].rename(plain).split(" ")
        ]
        renamed = [self._plain(word) for word in plain_words]
        overrides = [self._override(word) for word in words if _is_override(word)]
        return [*renamed, *(override for override in overrides if override is not None)]

    def _plain(self, word: str) -> str:
        return self.path(word) if "/" in word else self.names["presets"].rename(word)

    def path(self, path: str) -> str:
        """A path inside a run in the names of this side."""
        return self.names["files"].rename(path)

    def _override(self, word: str) -> str | None:
        configuration = self.names["configuration"]
        key, _, text = word.partition("=")
        if configuration.matches(key, configuration.removed):
            return None
        value = yaml.safe_load(text)
        spelled = configuration.value(key, value)
        return f"{configuration.rename(key)}={text if spelled == value else _spelled(spelled)}"


def _is_override(word: str) -> bool:
    return "=" in word and not word.startswith("-")


def _spelled(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def start(side: Side, command: Command, folder: Path) -> BaseProcess:
    """Start `spa` in a folder, in a process group of its own, with what it prints in `output.txt`."""
    module = "spa"
    words = side.words(command.words)
    if command.ranks > 1:
        module = "torch.distributed.run"
        words = ["--standalone", f"--nproc-per-node={command.ranks}", "-m", "spa", *words]
    process = FORKS.Process(target=_become, args=(module, words, folder, side.environment))
    process.start()
    return process


def _become(module: str, words: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Be `python -m module words` in a folder. This process has the libraries already, which saves five seconds."""
    os.setsid()
    log = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(log, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    source = environment["PYTHONPATH"]
    sys.path[:] = [
        "",
        source,
        *(path for path in sys.path if path not in ("", str(ROOT / "tools"))),
    ]
    spec = importlib.util.find_spec("spa")
    if spec is None or not str(spec.origin).startswith(source):
        raise SystemExit(f"spa is not imported from {source}")
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def run_command(side: Side, command: Command, folder: Path) -> str:
    """Run `spa` in a folder; returns its output. Raises CaseError if it fails, hangs, or ends before it is killed."""
    killed = f"killed at {command.kill_at}"
    what = f"`spa {command.words[0]}`"
    process = start(side, command, folder)
    mark = None if command.kill_at is None else folder / side.path(command.kill_at)
    end = time.monotonic() + TIMEOUT_S
    while process.exitcode is None and not (mark and mark.exists()) and time.monotonic() < end:
        process.join(0.02 if mark else 1.0)
    status = process.exitcode
    if status is None:
        os.killpg(cast("int", process.pid), signal.SIGKILL)
        process.join()
    text = (folder / "output.txt").read_text(errors="replace")
    if status is None and mark is None:
        raise CaseError(f"{what} did not end within {TIMEOUT_S} s")
    if status is None and mark and not mark.exists():
        raise CaseError(f"{what} was not {killed} within {TIMEOUT_S} s")
    if status is not None and (mark or status):
        told = f"ended before it was {killed}" if mark else f"has exit status {status}"
        raise CaseError(f"{what} {told}: {_last_line(text)}")
    return text


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [
        line for line in lines if re.match(r"(\[\w+\]:)?\s*(\w+\.)*\w*(Error|Exception)\b", line)
    ]
    return ([*lines[-1:], *errors[-1:]] or ["no output"])[-1][:300]


def run_case(side: Side, case: Case, folder: Path) -> None:
    """Run the commands of a case in a folder. Raises CaseError."""
    folder.mkdir(parents=True)
    if case is not CONFIGURATIONS:
        for command in case.commands:
            run_command(side, command, folder)
        return
    for name in run_command(side, Command(("config", "list")), folder).split():
        text = run_command(side, Command(("config", "show", name)), folder)
        (folder / f"{name}.yaml").write_text(text)


def knows(side: Side, case: Case, scratch: Path) -> bool:
    """Return whether a side has the feature of an optional case."""
    if not case.requires:
        return True
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        try:
            run_command(side, Command(("config", "show", "base", *case.requires)), Path(folder))
        except CaseError:
            return False
    return True


def results(folder: Path, names: Names) -> dict[str, Any]:
    """Relative path -> content of everything in a case's folder that is compared, in new names."""
    by_name = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if not path.is_file() or path.suffix not in RESULTS or IGNORED_FILES.fullmatch(path.name):
            continue
        hidden = any(part.startswith(".") for part in inside.parts)
        if hidden or any(part in IGNORED_FOLDERS for part in inside.parts):
            continue
        section, name = _named(str(inside), names)
        if not section.matches(name, section.removed):
            by_name[section.rename(name)] = _content(path, names)
    return by_name


def _named(name: str, names: Names) -> tuple[Section, str]:
    """Display name of a result, and the section of renamed names that applies: a resolved
    configuration has the name of its preset."""
    return (
        (names["presets"], name.removesuffix(".yaml"))
        if name.endswith(".yaml")
        else (names["files"], name)
    )


def _content(path: Path, names: Names) -> Any:
    if path.suffix == ".safetensors":
        return load_file(path)
    if path.suffix == ".yaml":
        return canonical_configuration(
            dict(flatten(yaml.safe_load(path.read_text()))), names["configuration"]
        )
    columns = names["columns"]
    if path.suffix == ".parquet":
        rows = pyarrow.parquet.read_table(path).to_pylist()
        return [
            canonical_record({key: _parsed(value) for key, value in row.items()}, columns)
            for row in rows
        ]
    if path.suffix == ".json":
        document = json.loads(path.read_text())
        if isinstance(document, dict):
            document = {key: value for key, value in document.items() if key not in IGNORED_KEYS}
        return canonical_record(document, columns, names["metrics"])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if path.name == "metrics.jsonl":
        return [canonical_metrics(line, names["metrics"]) for line in lines]
    return [canonical_record(line, columns) for line in lines]


def _parsed(value: Any) -> Any:
    """A column of examples that holds JSON as text, as it is."""
    return json.loads(value) if isinstance(value, str) and value.startswith('{"') else value


@dataclass(frozen=True)
class Outcome:
    """Result of a case on one side: its folder and seconds, or the reason why there is none."""

    folder: Path
    seconds: float = 0.0
    error: str | None = None
    absent: bool = False
    cached: bool = False


def outcome(side: Side, case: Case, folder: Path) -> Outcome:
    """Run a case on a side."""
    start = time.monotonic()
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not knows(side, case, folder.parent):
        return Outcome(folder, absent=True)
    try:
        run_case(side, case, folder)
    except CaseError as error:
        return Outcome(folder, time.monotonic() - start, error=str(error))
    return Outcome(folder, time.monotonic() - start)


def cached_outcome(side: Side, case: Case, cache: Path, folder: Path) -> Outcome:
    """Return the cached result of BASE, or compute and cache it; failures are not cached."""
    place = cache / _key(side, case)
    mark = place / "golden-seconds"
    if mark.exists():
        return Outcome(place, float(mark.read_text()), cached=True)
    computed = outcome(side, case, folder)
    if computed.error or computed.absent:
        return computed
    for path in computed.folder.rglob("state"):
        shutil.rmtree(path)
    (computed.folder / mark.name).write_text(str(computed.seconds))
    cache.mkdir(parents=True, exist_ok=True)
    # A copy beside its place, then a rename: of two processes with the same BASE one is second, and keeps nothing.
    with tempfile.TemporaryDirectory(dir=cache) as copy:
        shutil.copytree(computed.folder, Path(copy) / "case")
        try:
            os.rename(Path(copy) / "case", place)
        except OSError:
            return computed
    return replace(computed, folder=place)


def _key(side: Side, case: Case) -> str:
    """A case, the commands that it comes to on this side, and what else its bits depend on."""
    commands = [
        [*side.words(command.words), command.ranks, command.kill_at] for command in case.commands
    ]
    libraries = [version(name) for name in ("torch", "transformers", "tokenizers", "numpy")]
    cpu = re.findall(
        r"^(?:model name|flags)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
    )[:2]
    text = json.dumps([commands, libraries, sys.version, cpu])
    return f"{case.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def verdict(case: Case, base: Outcome, tree: Outcome, since: Names, here: Names) -> tuple[str, str]:
    """One word and what there is to say: equal, differs, fails or absent."""
    if base.absent:
        return "absent", f"BASE does not know {', '.join(case.requires)}"
    if tree.absent:
        return "fails", f"the working tree does not know {', '.join(case.requires)}"
    for label, side in (("BASE", base), ("the working tree", tree)):
        if side.error:
            return "fails", f"in {label}: {side.error}"
    nothing = Names.read("")
    of_base = results(base.folder, since)
    of_tree = results(tree.folder, nothing)
    if not of_base:
        return "fails", "in BASE: it wrote no result"
    if case.same:
        calm, other = (_below(of_tree, f"{name}/") for name in case.same)
        if unlike := difference(calm, other):
            return "differs", f"{case.same[1]} from {case.same[0]} in the working tree: {unlike}"
    differing = list(_differing(of_base, of_tree, here))
    if not differing:
        return "equal", f"{len(of_base)} files"
    more = f" (and {len(differing) - 1} files more)" if len(differing) > 1 else ""
    return "differs", f"{differing[0]}{more}"


def _below(files: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): content
        for name, content in files.items()
        if name.startswith(prefix)
    }


def _differing(base: Mapping[str, Any], tree: Mapping[str, Any], here: Names) -> Iterator[str]:
    """The first difference of every file that has one; records first, as weights say less about the reason."""
    for name in sorted({*base, *tree}, key=lambda name: (name.endswith(".safetensors"), name)):
        if name not in tree:
            yield f"{name}: missing here"
        elif name not in base:
            if not any(here[kind].matches(name, here[kind].added) for kind in ("files", "presets")):
                yield f"{name}: missing in BASE"
        elif differing := difference(base[name], tree[name], _added(name, here), name):
            yield differing


def _added(name: str, here: Names) -> Section:
    """Which keys of a result may be new."""
    if name.endswith("metrics.jsonl"):
        return here["metrics"]
    return here["columns"] if "." in name else here["configuration"]


def show(word: str, case: Case, seconds: Sequence[float], text: str) -> None:
    """Print the line of a case."""
    print(
        f"{word:8}{case.name:22}{' + '.join(f'{number:.0f}' for number in seconds):>9} s  {text}",
        flush=True,
    )


def compare(
    base: Side, tree: Side, cases: Sequence[Case], jobs: int, cache: Path | None, scratch: Path
) -> int:
    """Run the cases on both sides, `jobs` at a time, and print what came of each; returns the exit status."""
    since = tree.names.since(base.names)
    words = []
    with ThreadPoolExecutor(jobs) as pool:
        started: list[tuple[Case, Future[Outcome], Future[Outcome]]] = []
        for case in cases:
            there, here = scratch / "base" / case.name, scratch / "tree" / case.name
            of_base = (
                pool.submit(outcome, base, case, there)
                if cache is None
                else pool.submit(cached_outcome, base, case, cache, there)
            )
            started.append((case, of_base, pool.submit(outcome, tree, case, here)))
        for case, of_base, of_tree in started:
            left, right = of_base.result(), of_tree.result()
            word, text = verdict(case, left, right, since, tree.names)
            words.append(word)
            show(word, case, [0.0 if left.cached else left.seconds, right.seconds], text)
            shutil.rmtree(scratch / "base" / case.name, ignore_errors=True)
            shutil.rmtree(scratch / "tree" / case.name, ignore_errors=True)
    counts = [
        f"{words.count(word)} {word}"
        for word in ("equal", "differs", "fails", "absent")
        if word in words
    ]
    print(", ".join(counts))
    return 0 if set(words) <= {"equal", "absent"} else 1


def _git(*words: str) -> bytes:
    """Output of git in this repository. Raises SystemExit with what it says."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"golden.py: {done.stderr.decode().strip()}")
    return done.stdout


def unpacked(commit: str, folder: Path) -> Side:
    """The sources of a commit in a folder, with the names that it has."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as archive:
        archive.extractall(folder, filter="data")
    table = folder / TABLE
    return Side("BASE", folder, Names.read(table.read_text() if table.exists() else ""))


def main() -> int:
    """Compare what the arguments name; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", metavar="BASE", help="the commit to compare with")
    parser.add_argument(
        "--only", nargs="+", metavar="CASE", choices=[case.name for case in ALL], help="these cases"
    )
    parser.add_argument(
        "-j", "--jobs", type=int, default=2, help="processes at a time (default: 2)"
    )
    parser.add_argument(
        "--cache", type=Path, default=CACHE, metavar="DIR", help=f"default: {CACHE}"
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="read and write no cache: leave no file"
    )
    options = parser.parse_args()
    commit = _git("rev-parse", "--verify", f"{options.base}^{{commit}}").decode().strip()
    cases = [case for case in ALL if options.only is None or case.name in options.only]
    FORKS.set_forkserver_preload([*LIBRARIES])
    with tempfile.TemporaryDirectory(prefix="spa-golden-") as folder:
        scratch = Path(folder).resolve()
        base = unpacked(commit, scratch / "sources")
        tree = Side("the working tree", ROOT, Names.read((ROOT / TABLE).read_text()))
        cache = None if options.no_cache else options.cache / commit
        return compare(base, tree, cases, options.jobs, cache, scratch)


if __name__ == "__main__":
    raise SystemExit(main())

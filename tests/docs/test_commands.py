"""Every command printed in README.md, CONTRIBUTING.md and docs/*.md is run, page by page and in the page's order.

Commands stand in fenced `sh` blocks and in indented blocks. They are run as printed, in an empty folder that has a
finished run (`runs/demo`), a configuration (`my_run.yaml`) and the files that the page itself prints under their names.
A comment before a block says what is done instead:

    <!-- commands: dry run -->            `--dry-run` is added (`-n` for make): everything but the work
    <!-- commands: until interrupted -->  started, and interrupted after the first line that it prints
    <!-- commands: options only -->       needs weights or hours: the command has the options that are named
    <!-- commands: not run, REASON -->    not a command of ours, or run elsewhere
"""

import io
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from spa.cli import COMMANDS, TOP
from spa.cli import main as spa

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
MARKS = ("as printed", "dry run", "until interrupted", "options only")
SCRIPTS = ("./run_spa.sh", "./run_baseline.sh")
LONG = ("run", "compare", "eval", "bench paper", "bench methods", "model pretrain-tiny")
SERVERS = ("view", "env shop", "env serve")
PROGRAMS = ("spa", "make", "pytest", "mkdir", "cd", *SCRIPTS)


@dataclass(frozen=True)
class Command:
    """A command of a page: where it stands, its words, and what is done with it."""

    line: int
    words: list[str]
    mark: str


def blocks(text: str) -> Iterator[tuple[int, str, bool, list[str]]]:
    """(first line, mark, whether it is a fence of commands, lines) of every fenced or indented block."""
    mark, fence, start, content = "as printed", None, 0, []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if match := re.match(r"```+(\w*)", line):
            if fence is None:
                fence, start, content = match[1], number + 1, []
            else:
                yield start, mark, fence in ("sh", "bash", "console"), content
                fence, content, mark = None, [], "as printed"
        elif fence is not None:
            content.append(line)
        elif line.startswith("    "):
            start = start if content else number
            content.append(line.strip())
        else:
            if content:
                yield start, mark, False, content
                content, mark = [], "as printed"
            if match := re.fullmatch(r"<!-- commands: (.+?) -->", line):
                mark = match[1]
            elif line.strip():
                mark = "as printed"


def commands(page: Path) -> list[Command]:
    """The commands of a page, in order."""
    found = []
    for start, mark, strict, lines in blocks(page.read_text(encoding="utf-8")):
        if mark.startswith("not run, "):
            continue
        assert mark in MARKS, f"{page.name}:{start}: unknown mark {mark!r}"
        for number, line in enumerate(lines, start=start):
            text = line.removeprefix("$ ").removeprefix(".venv/bin/")
            if text.partition(" ")[0] in PROGRAMS:
                found.append(Command(number, shlex.split(text, comments=True), mark))
            else:
                assert not strict or not text.strip(), (
                    f"{page.name}:{number}: {text!r} is no command of ours; mark it"
                )
    return found


def placeholder(words: list[str]) -> bool:
    """Whether a word is to be replaced by the reader: CONFIG, FOLDER."""
    return any(re.fullmatch(r"[A-Z_]{2,}", word) for word in words)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished comparison."""
    sys.path.insert(0, str(ROOT / "tests" / "report"))
    try:
        from report_fixtures import write_demo
    finally:
        sys.path.remove(str(ROOT / "tests" / "report"))
    folder = tmp_path_factory.mktemp("finished") / "demo"
    write_demo(folder)
    return folder


@pytest.fixture
def workplace(
    tmp_path: Path, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The folder in which a page is followed."""
    shutil.copytree(finished_run, tmp_path / "runs" / "demo")
    (tmp_path / "my_run.yaml").write_text(
        "defaults: [_3_frozen_lake]\nmodel_path: builtin:tiny\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setattr(sys, "path", list(sys.path))
    level = logging.getLogger("spa").level
    yield tmp_path
    logging.getLogger("spa").setLevel(level)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(page)], ids=lambda page: page.name
)
def test_every_command_of_a_page_works(
    page: Path, workplace: Path, capfd: pytest.CaptureFixture[str]
):
    for name, content in re.findall(
        r"```\w+\n# (\w+\.\w+)\b[^\n]*\n(.*?)```", page.read_text(encoding="utf-8"), re.S
    ):
        (workplace / name).write_text(content, encoding="utf-8")
    for command in commands(page):
        status = run(command, workplace, capfd)
        assert status == 0, (
            f"{page.name}:{command.line}: {shlex.join(command.words)}\n{''.join(capfd.readouterr())}"
        )


def run(command: Command, workplace: Path, capfd: pytest.CaptureFixture[str]) -> int:
    """Do with a command what its mark says; returns its exit status."""
    program, *args = command.words
    dry = command.mark == "dry run"
    if program == "mkdir":
        Path(*args).mkdir()
        return 0
    if program == "cd":
        os.chdir(*args)
        return 0
    if program == "make":
        return finish(["make", "-n", *args], ROOT) if dry else 1
    if program in SCRIPTS:
        return finish([str(ROOT / program), *args, *(["--dry-run"] if dry else [])], workplace)
    if program == "pytest":
        return finish(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args], Path.cwd()
        )
    name = name_of(args)
    if name not in COMMANDS:
        return 0 if args == ["--help"] or (name in TOP and args[1:] == ["--help"]) else 2
    if command.mark == "options only" or placeholder(args):
        return (
            0 if set(option_names(args)) <= set(option_names(help_of(name, capfd).split())) else 1
        )
    if command.mark == "until interrupted":
        return interrupted(tuple(args))
    short = "--dry-run" in args or "--world-model" in args
    assert dry or name not in LONG or short, f"line {command.line}: mark it as dry run"
    assert "--export" in args or name not in SERVERS, (
        f"line {command.line}: mark it as until interrupted"
    )
    args = shortened(args, dry=dry and name in LONG)
    try:
        return spa([*args, "--dry-run"] if dry else args)
    except SystemExit as stop:
        return int(stop.code or 0)


def shortened(args: list[str], *, dry: bool) -> list[str]:
    """Give a command fewer transitions or states, and a plan fewer seeds, environments and methods."""
    fewer = {"--transitions": "5", "--states": "5"} | ({"--seeds": "2"} if dry else {})
    args = [fewer.get(before, word) for before, word in zip(["", *args], args, strict=False)]
    if dry and args[0] == "bench" and "--seeds" not in args:
        args = [*args, "--seeds", "1"]
    if dry and args[:2] == ["bench", "methods"] and "--env" not in args:
        args = ["bench", "methods", "spa", *args[2:], "--env", "FrozenLake 4x4"]
    if dry and args[:2] == ["bench", "paper"] and "--only" not in args:
        args = [*args, "--only", "FrozenLake/spa"]
    return args


def name_of(args: list[str]) -> str:
    """The words of a command: `run`, or `env list`."""
    two = " ".join(args[:2])
    return two if two in COMMANDS else args[0]


def finish(words: list[str], folder: Path) -> int:
    """Run a program to its end."""
    return subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, check=False).returncode


@cache
def interrupted(args: tuple[str, ...]) -> int:
    """Start a command, wait for its first line, interrupt it as the keyboard would; 0 if it then ends quietly.

    Pages that print the same command share a process: it reads nothing but the finished run."""
    process = subprocess.Popen(
        # any free port
        [sys.executable, "-m", "spa", *args, *([] if "--port" in args else ["--port", "0"])],
        env={**os.environ, "BROWSER": "true"},  # no window opens
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    quiet = bool(first) and process.returncode in (0, 130) and "Traceback" not in errors
    if not quiet:
        sys.stderr.write(f"status {process.returncode} after {first!r}\n{errors}\n")
    return 0 if quiet else 1


def option_names(words: list[str]) -> list[str]:
    """The names of options among words."""
    return [
        match[0] for word in words if (match := re.match(r"--[a-z][\w-]*", word.strip("[],()")))
    ]


def help_of(name: str, capfd: pytest.CaptureFixture[str]) -> str:
    """What `spa NAME --help` prints."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as stop:
        spa([*name.split(), "--help"])
    assert stop.value.code == 0
    return capfd.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_text_exist(page: Path):
    for line in re.findall(
        r"`(?:\.venv/bin/)?spa ([a-z][^`\n]*)", page.read_text(encoding="utf-8")
    ):
        words = line.split()
        assert name_of(words) in (*COMMANDS, *TOP), line

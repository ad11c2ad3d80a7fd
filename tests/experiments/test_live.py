"""What a comparison shows while it trains: a table on a terminal, lines in a pipe."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from helpers.killed import SMALLEST

from spa.run.announce import StagePlan, expected_time, plan_lines
from spa.run.console import set_verbosity
from spa.run.estimate import TimeLeft, Work, time_left, time_range
from spa.run.live import StageProgress
from spa.run.recorder import Recorder
from spa_sweeps import live
from spa_sweeps.live import GridProgress, StageView

STEPS = ("trainer.total_training_steps=2", "sft.trainer.total_training_steps=2")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}
ENVIRONMENT.pop("COLUMNS", None)  # rich would take it for the width of the terminal
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(autouse=True)
def not_quiet() -> None:
    set_verbosity()  # a test before may have been quiet


def compare(run: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "spa", "compare", "tiny", f"trainer.run_dir={run}"),
        *(*SMALLEST, *STEPS, *more),
    ]


def on_a_terminal(command: list[str]) -> str:
    """What a command writes to a terminal of 120 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=ENVIRONMENT, close_fds=True
    )
    os.close(theirs)
    written = b""
    try:
        while block := os.read(ours, 65536):
            written += block
    except OSError:  # Linux: the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return ESCAPES.sub("", written.decode())


def test_a_comparison_on_a_terminal_is_a_table(tmp_path: Path):
    gate = ("gate.enable=true", "gate.on_failure=warn", "compare.parallel=1")
    shown = on_a_terminal(compare(tmp_path / "run", *gate))
    before = shown.partition("success on held-out puzzles, in percent")[0]
    assert "spa: runs self-play, SFT, PPO\r\nvanilla: runs PPO\r\n" in before
    table = before[before.index("method") :]
    for column in ("stage", "step", "success", "prediction", "copy baseline", "time left"):
        assert column in table.splitlines()[0]
    steps = re.findall(r"spa +(self-play|SFT|PPO) +\S+ +(\d+)", table)
    assert {stage for stage, _ in steps} >= {"PPO"} and len(set(steps)) > 1
    assert re.search(r"vanilla +PPO +\S+ +3/3 +[\d.]+ +finished", table)
    # A worker's warning is a line of its own above the table.
    assert re.search(r"[\r\n]warning: World-model gate", before)
    assert "chat template" not in shown and "[tiny-" not in shown


def record(folder: Path, steps: range, *, total: int, every: int = 1) -> None:
    resume = steps[0] - 1 or None
    with Recorder(folder, stage="sft", total_steps=total, resume_step=resume) as recorder:
        for step in steps:
            time.sleep(0.002)  # timings are kept in whole milliseconds
            values = {"val/success": step / 10} if step % every == 0 else {}
            recorder.log(step, {"train/loss": 1.0, **values})


def test_a_line_has_the_values_that_are_newer_than_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(live, "_LINE_SECONDS", (0.0, 0.0))
    folder = tmp_path / "spa" / "sft"
    with GridProgress([StageView("spa", "SFT", folder)]) as progress:
        for steps in (range(1, 4), range(4, 6), range(6, 8)):
            record(folder, steps, total=8, every=3)
            progress.update(running={folder}, unfinished={folder})
        progress.update(running=(), unfinished=())
    written = capsys.readouterr().err.splitlines()
    assert all(re.search(r"left \(under a minute left in all\)$", line) for line in written[:3])
    lines = [line.rpartition("  ")[0] for line in written]
    assert lines == [
        "spa: SFT 3/8  success 0.300",
        "spa: SFT 5/8",
        "spa: SFT 7/8  success 0.600",
        "spa: SFT 7/8",
    ]


def test_a_stage_without_a_step_says_how_long_it_runs_and_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(live, "_LINE_SECONDS", (0.0, 0.0))
    folders = [tmp_path / "spa" / name for name in ("data", "sft")]
    stages = [
        StageView("spa", "self-play", folders[0], 600.0),
        StageView("spa", "SFT", folders[1], 60.0),
    ]
    with GridProgress(stages) as progress:
        progress.update(running=folders[:1], unfinished=folders)
    assert capsys.readouterr().err == (
        "spa: self-play  0:00 so far (6 to 22 minutes left in all; next: spa SFT)\n"
    )


def test_a_failed_stage_does_not_come_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(live, "_LINE_SECONDS", (0.0, 0.0))
    failed, running = tmp_path / "spa" / "sft", tmp_path / "vanilla" / "ppo"
    stages = [StageView("spa", "SFT", failed), StageView("vanilla", "PPO", running)]
    with GridProgress(stages) as progress:
        progress.update(running=[running], unfinished=[failed, running], failed=[failed])
    written = capsys.readouterr().err
    assert "vanilla: PPO" in written and "next" not in written


def test_the_time_left_counts_down_within_a_long_step(tmp_path: Path):
    line = {"step": 1, "elapsed_s": 600.0, "unix_time": 1000.0, "total_steps": 3}
    (tmp_path / "timings.jsonl").write_text(json.dumps(line) + "\n")
    known = StageProgress(tmp_path).read()
    assert known.seconds_left_at(1000.0) == 1200.0
    assert known.seconds_left_at(1400.0) == 800.0
    assert known.seconds_left_at(9000.0) == 600.0  # the last step has not begun


def test_progress_reads_a_file_that_became_shorter_from_its_start(tmp_path: Path):
    record(tmp_path, range(1, 6), total=9)
    known = StageProgress(tmp_path).read()
    assert (known.steps, known.values["success"]) == ("5/9", ("0.500", 5))
    Recorder(tmp_path, stage="sft", total_steps=9, resume_step=2).close()
    assert known.read().steps == "2/9"
    assert StageProgress(tmp_path / "nothing").read().seconds_left is None


def test_the_time_is_an_estimate_from_measured_stages_or_not_said(tmp_path: Path):
    record(tmp_path / "done", range(1, 4), total=3)
    record(tmp_path / "half", range(1, 4), total=6)
    done = StagePlan("SFT", tmp_path / "done", "reuse")
    half = StagePlan("SFT", tmp_path / "half", "run")
    new = StagePlan("SFT", tmp_path / "new", "run")
    other = StagePlan("PPO", tmp_path / "other", "run")
    assert expected_time({"a": [new]}, workers=1) is None
    left = expected_time({"a": [done], "b": [new, other]}, workers=1)
    assert left is not None and left.without == ("PPO",)
    one = expected_time({"a": [done], "b": [new]}, workers=1)
    two = expected_time({"a": [done], "b": [new], "c": [new]}, workers=1)
    assert one is not None and two is not None
    assert (two.low, two.high) == pytest.approx((2 * one.low, 2 * one.high))
    assert expected_time({"a": [done], "b": [new], "c": [new]}, workers=2) == one
    assert expected_time({"a": [half]}, workers=1) is not None
    assert plan_lines({"a": [done, half], "b": [new]}) == [
        "a: resumes SFT (step 3); reuses SFT (finished with the same settings)",
        "b: runs SFT",
    ]


def test_one_estimate_for_all_stages_follows_the_measured_speed():
    plan = [Work(name="SFT", expected=100.0), Work(name="PPO", expected=300.0)]
    assert time_left([plan], workers=1) == TimeLeft(200.0, 800.0)
    # SFT is half done and takes twice as long as planned, so PPO will, too.
    half = Work(name="SFT", expected=100.0, spent=100.0, left=100.0)
    assert time_left([[half, plan[1]]], workers=1) == TimeLeft(560.0, 875.0)
    # Two methods share two processes; the longer one decides.
    assert time_left([plan, [plan[0]]], workers=2) == TimeLeft(200.0, 800.0)
    assert time_left([plan, plan], workers=1) == TimeLeft(400.0, 1600.0)
    done = [Work(name="SFT", expected=100.0, spent=90.0, left=0.0)]
    assert time_left([done], workers=1) == TimeLeft(0.0, 0.0)
    search = Work(name="self-play", expected=None)
    assert time_left([[search]], workers=1) is None
    assert str(time_left([[search, *plan]], workers=1)) == (
        "3 to 13 minutes, without self-play (unknown)"
    )


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (5, 50, "under a minute"),
        (10, 100, "1 to 2 minutes"),
        (590, 610, "about 10 minutes"),
        (1600, 6400, "27 to 107 minutes"),
        (6000, 24_000, "1.7 to 6.7 hours"),
        (50_000, 90_000, "14 to 25 hours"),
    ],
)
def test_ranges_are_for_people(low: float, high: float, text: str):
    assert time_range(low, high) == text

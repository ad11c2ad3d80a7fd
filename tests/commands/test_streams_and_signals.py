"""The process of the command line: closed outputs, Ctrl-C again and again, and a request for stacks, at any time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.killed import SMALLEST, steps_of

SPA = f"'{sys.executable}' -m spa"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("--help | head -n 1", 0),
        ("--help >&-", 0),
        ("nonsense 2>&-", 2),
        ("config list | true", 0),
        ("env play FrozenLake <&-", 0),
    ],
)
def test_an_output_that_nobody_reads_is_no_error(line: str, status: int):
    result = subprocess.run(
        ["bash", "-c", f"{SPA} {line}; exit ${{PIPESTATUS[0]}}"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (status, "")


def test_results_for_a_closed_pipe_are_no_error(tmp_path: Path):
    """Of the console that draws tables."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text("{}")
    line = f"{SPA} runs {tmp_path} | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", line], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_work_goes_on_when_nobody_reads_its_progress():
    code = (
        "import logging, spa.__main__ as command\n"
        "from spa.run.console import set_verbosity\n"
        "def work():\n"
        "    set_verbosity()\n"
        "    for line in ('begun', 'done'):\n"
        "        logging.getLogger('spa').info(line)\n"
        "    print('the result')\n"
        "    return 0\n"
        "command.main = work\n"
        "command.run()\n"
    )
    closed, stderr = os.pipe()
    os.close(closed)
    result = subprocess.run(
        [sys.executable, "-c", code], stderr=stderr, stdout=subprocess.PIPE, text=True, check=False
    )
    os.close(stderr)
    assert (result.returncode, result.stdout) == (0, "the result\n")


def start(command: str, run: Path, *more: str) -> subprocess.Popen[bytes]:
    words = [
        sys.executable,
        "-m",
        "spa",
        command,
        "tiny",
        f"trainer.run_dir={run}",
        *SMALLEST,
        *more,
    ]
    return subprocess.Popen(
        words, env=ENVIRONMENT, start_new_session=True, stderr=(run.parent / "err.txt").open("wb")
    )


def expects(process: int, number: int) -> bool:
    """Whether a signal would not end the process."""
    about = Path(f"/proc/{process}/status").read_text()
    masks = (line.split() for line in about.splitlines() if line.startswith(("SigIgn:", "SigCgt:")))
    return any(int(mask, 16) >> (number - 1) & 1 for _, mask in masks)


def wait_for(process: subprocess.Popen[bytes], stage: Path) -> None:
    give_up = time.monotonic() + 300
    while not steps_of(stage):
        assert process.poll() is None and time.monotonic() < give_up
        time.sleep(0.02)


@pytest.mark.parametrize(("command", "pause"), [("run", 0.3), ("compare", 0.02)])
def test_ctrl_c_three_times_shows_no_traceback_and_a_request_for_stacks_ends_no_run(
    tmp_path: Path, command: str, pause: float
):
    """Stacks are asked for twice a second: before, in and between the stages of a run.

    Not more often: faulthandler reads the frames of threads that run, and rarely meets one half written.
    """
    run = tmp_path / "run"
    if command == "run":
        stage = run / "sft"
        more = ["--stages", "selfplay,sft", "sft.trainer.total_training_steps=1000"]
    else:  # `vanilla` has no other stage than PPO, and one worker is enough
        stage = run / "vanilla" / "ppo"
        more = ["compare.arms=[vanilla]", "trainer.val_before_train=false"]
    process = start(command, run, "generate.policy=random", *more)
    try:
        while not expects(process.pid, signal.SIGUSR1):  # the interpreter itself starts
            time.sleep(0.02)
        while command == "run" and not steps_of(stage):
            assert process.poll() is None
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.5)
        wait_for(process, stage)
        for _ in range(3):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            time.sleep(pause)
        assert process.wait(60) == 130
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    told = (tmp_path / "err.txt").read_text()
    assert "Traceback" not in told
    assert ("most recent call first" in told) == (command == "run")


def test_ctrl_c_in_the_handling_of_ctrl_c_ends_like_the_first():
    code = (
        "import spa.cli, spa.__main__\n"
        "def interrupted():\n    raise KeyboardInterrupt\n"
        "spa.cli.main = interrupted\n"
        "spa.__main__.run()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (130, "")


WITH_CHILDREN = """
import os, signal, time
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from queue import Empty, SimpleQueue
from spa.run.signals import ignore_interrupts, raise_if_asked, stoppable, stopping_children

signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))  # as the command line does
with stoppable(), ExitStack() as workers, stopping_children():
    spawn = get_context("spawn")
    pools = [
        workers.enter_context(ProcessPoolExecutor(1, spawn, ignore_interrupts)) for _ in range(4)
    ]
    wait([pool.submit(time.sleep, 0) for pool in pools])
    ended = SimpleQueue()  # as run_grid waits
    for pool in pools:
        pool.submit(time.sleep, 30).add_done_callback(ended.put)
    print("ready", flush=True)
    while True:
        raise_if_asked()
        with suppress(Empty):
            ended.get(timeout=1)
"""


def test_ctrl_c_again_while_children_are_asked_to_stop_leaves_none_running():
    """The second one arrives in the handler of the first: often enough in five times."""
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WITH_CHILDREN],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(3):
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(20)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

"""One process at a time in a run directory."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from spa.errors import TrainingError
from spa.run.lock import LOCK, held, run_lock

HOLD = (
    "import sys, time; from pathlib import Path; from spa.run.lock import run_lock\n"
    "with run_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)"
)


def test_a_second_process_is_told_who_holds_the_directory(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        told = rf"in use by process {other.pid} on {socket.gethostname()}"
        with pytest.raises(TrainingError, match=told), run_lock(tmp_path, patience_s=0):
            pytest.fail("two at a time")
        other.send_signal(signal.SIGKILL)
        other.wait(60)
    with run_lock(tmp_path, patience_s=0):  # a killed process leaves no lock behind
        pass


def test_clocks_do_not_matter(tmp_path):
    """1970 or 2100: a lock lasts as long as its process."""
    lock = tmp_path / LOCK
    assert held(tmp_path) is None
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        for time in (0, 4_102_444_800):
            os.utime(lock, (time, time))
            assert held(tmp_path) is True
            with (
                pytest.raises(TrainingError, match=f"process {other.pid} "),
                run_lock(tmp_path, patience_s=0),
            ):
                pytest.fail("two at a time")
        other.send_signal(signal.SIGKILL)
        other.wait(60)
    os.utime(lock, (time, time))
    assert held(tmp_path) is False
    with run_lock(tmp_path, patience_s=0):
        pass
    lock.write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    assert held(tmp_path) is None


def test_it_is_free_again_afterwards_and_makes_the_directory(tmp_path):
    for _ in range(2):
        with run_lock(tmp_path / "a" / "b"):
            assert (tmp_path / "a" / "b").is_dir()


def test_directories_inside_each_other_have_locks_of_their_own(tmp_path):
    with run_lock(tmp_path), run_lock(tmp_path / "ppo"):
        for held in (tmp_path, tmp_path / "ppo"):
            with pytest.raises(TrainingError, match="in use by"), run_lock(held, patience_s=0):
                pytest.fail("two at a time")


def test_a_file_in_the_way_and_a_read_only_directory_are_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(TrainingError, match=r"cannot write to .*file.*No file was changed"),
        run_lock(tmp_path / "file"),
    ):
        pass
    if os.geteuid() != 0:  # root may write anywhere
        tmp_path.chmod(0o500)
        with pytest.raises(TrainingError, match="Permission denied"), run_lock(tmp_path):
            pass
    elif os.path.isdir("/proc/sys"):
        with (
            pytest.raises(TrainingError, match="cannot write to"),
            run_lock(type(tmp_path)("/proc/sys/spa")),
        ):
            pass

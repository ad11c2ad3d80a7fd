"""A stage that hangs says where, and ends."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from spa.run import watchdog
from spa.run.console import set_verbosity
from spa.run.recorder import Recorder
from spa.run.watchdog import STATUS, Watchdog, beat

HANGS = """
import sys, time
from pathlib import Path
from spa.run.recorder import Recorder
with Recorder(Path(sys.argv[1]), stage="ppo", stall_timeout_s=float(sys.argv[2])) as rec:
    rec.log(1, {"a": 1.0})
    with rec.timer("rollout"):
        def stuck_in_the_mud():
            print("stuck", flush=True)
            time.sleep(600)
        stuck_in_the_mud()
"""


def start(folder: Path, seconds: float) -> subprocess.Popen:
    words = [sys.executable, "-c", HANGS, str(folder), str(seconds)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_stage_without_progress_ends_and_says_where_it_hung(tmp_path):
    with start(tmp_path, 0.5) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == STATUS
    assert "no progress for 0.5 s in rollout" in errors and "run the same command again" in errors
    assert "in stuck_in_the_mud" in (tmp_path / "log.txt").read_text()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step":1,"a":1.0}\n'


def test_one_may_ask_where_it_is(tmp_path):
    with start(tmp_path, 300) as process:
        assert process.stdout is not None and process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGUSR1)
        while "in stuck_in_the_mud" not in (tmp_path / "log.txt").read_text():
            assert process.poll() is None
        process.kill()


def test_a_long_step_says_what_it_does(tmp_path, monkeypatch, capsys):
    set_verbosity()  # a test before may have been quiet
    monkeypatch.setattr(watchdog, "NOTICE_S", 0.05)
    with Recorder(tmp_path, stage="selfplay", stall_timeout_s=60.0) as rec:
        rec.log(1, {"a": 1.0})
        with rec.timer("rollout"):
            time.sleep(0.5)
            beat()  # turns are played, so nothing hangs
            written = ""
            while "selfplay: rollout, for 0 minutes so far" not in written:
                time.sleep(0.1)
                written += capsys.readouterr().err


def test_progress_keeps_it_quiet(tmp_path):
    watched = Watchdog(tmp_path / "log.txt", 30.0)
    watched.beat("more")
    watched.close()
    watched.close()
    with Recorder(tmp_path, stage="ppo") as rec:  # without a limit
        rec.log(1, {})
    assert "no progress" not in (tmp_path / "log.txt").read_text()


WORKS = """
import sys, time
from pathlib import Path
from spa.run import watchdog
from spa.run.recorder import Recorder
with Recorder(Path(sys.argv[1]), stage="ppo", stall_timeout_s=float(sys.argv[2])) as rec:
    print("started", flush=True)
    for _ in range(int(sys.argv[3])):
        time.sleep(0.1)
        watchdog.beat()
"""


def works(folder: Path, seconds: float, beats: int) -> subprocess.Popen:
    words = [sys.executable, "-c", WORKS, str(folder), str(seconds), str(beats)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_one_slow_thing_after_another_is_work(tmp_path):
    """No timer and no line for twice the limit: only beats."""
    with works(tmp_path, 1.0, 20) as process:
        process.communicate(timeout=120)
    assert process.returncode == 0


def test_a_process_that_was_suspended_goes_on(tmp_path):
    with works(tmp_path, 1.5, 5) as process:
        assert process.stdout is not None and process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=120)
    assert process.returncode == 0


def test_without_a_file_it_tells_stderr(tmp_path):
    script = "import time; from spa.run.watchdog import Watchdog; Watchdog(None, 0.3).beat('play'); time.sleep(60)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == STATUS and "most recent call first" in done.stderr

"""The short form of `make test-extra NAME=siege`: some of each of its cheap parts."""

import json
import os
import subprocess
import sys
from pathlib import Path

SIEGE = Path(__file__).with_name("siege.py")


def test_a_run_keeps_the_invariant_under_some_of_everything(tmp_path):
    parts = ["--only", "config", "environments", "--cases", "40", "--faults", "exit"]
    words = [sys.executable, str(SIEGE), *parts]
    found = subprocess.run(
        [*words, "--seed", "3", "--folder", str(tmp_path / "siege")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert found.returncode == 0, found.stdout + found.stderr[-3000:]
    report = json.loads((tmp_path / "siege" / "report.json").read_text())
    assert report["broken"] == []
    assert sum(report["counts"]["config"].values()) == 40
    assert report["counts"]["config"]["loaded"] > 3
    (ending,) = report["counts"]["environments"]
    assert ending.startswith("ended, ") and int(ending.split()[1]) > 0

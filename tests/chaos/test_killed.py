"""The short form of `make test-extra NAME=chaos`: a run that is killed, and one whose newest checkpoint is harmed, end like any other."""

import json
import os
import subprocess
import sys
from pathlib import Path

CHAOS = Path(__file__).with_name("chaos.py")


def test_killed_and_harmed_runs_end_as_if_nothing_had_happened(base, tmp_path):
    words = [sys.executable, str(CHAOS), "--kills", "1", "--faults", "torn", "--seed", "3"]
    result = subprocess.run(
        [*words, "--model", str(base), "--folder", str(tmp_path / "runs")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "runs" / "report.json").read_text())
    assert [row["changed"] for row in report["rows"]] == [[]] * len(report["rows"])
    killed = [row["done"] for row in report["rows"] if row["name"] == "killed"]
    assert sum(int(done.split()[1]) for done in killed) == 1
    assert report["rows"][-1]["name"] == "torn"
    assert report["files"] > 50
    assert f"All {len(killed) + 1} runs ended as the undisturbed one" in result.stdout

"""The pieces of work for a lent GPU, tried on a CPU: what they bring back."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_piece_brings_back_metrics_only(tmp_path):
    environment = os.environ | {"TINY": "1", "OUT": str(tmp_path), "PYTHON": sys.executable}
    subprocess.run(
        [ROOT / "experiments/gpu.sh", "ppo_step"], env=environment, check=True, timeout=400
    )
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert tmp_path / "ppo-step.json" in files
    assert all(path.suffix in (".json", ".csv") for path in files)
    found = json.loads((tmp_path / "ppo-step.json").read_text())
    assert found["shape"] == "tiny" and found["seconds"]["sampling"] > 0


def test_an_unknown_piece_is_refused():
    done = subprocess.run(
        [ROOT / "experiments/gpu.sh", "everything"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "unknown piece: everything" in done.stderr


def test_digits_that_two_runs_have_in_common(tmp_path):
    losses = {"a": (0.5, 0.25, 0.125), "b": (0.5, 0.25001, 0.12501)}
    for run, values in losses.items():
        folder = tmp_path / run / "sft"
        folder.mkdir(parents=True)
        lines = [
            json.dumps({"step": step, "loss": value, "lr": 1e-4, "time/update": step * len(run)})
            for step, value in enumerate(values, start=1)
        ]
        (folder / "metrics.jsonl").write_text("\n".join(lines))
    script = runpy.run_path(str(ROOT / "experiments/same_digits.py"))
    found = script["compare"](*(tmp_path / run / "sft/metrics.jsonl" for run in losses))
    assert found["loss"] == {"first_difference": 2, "digits_at_end": 4.1}
    assert found["lr"] == {"first_difference": None, "digits_at_end": 17.0}
    assert not any("time" in name for name in found)

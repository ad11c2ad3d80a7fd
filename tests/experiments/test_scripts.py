"""The scripts of `experiments/`."""

import json
import subprocess
import sys
from pathlib import Path

from spa_sweeps.methods import method

ROOT = Path(__file__).parents[2]


def test_scripts_read_the_settings_of_a_method():
    done = subprocess.run(
        ["bash", "-c", "source experiments/methods.sh; overrides_of search_model"],
        cwd=ROOT,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == list(method("search_model").overrides), done.stderr


def test_q_learning_writes_its_success(tmp_path: Path):
    output = tmp_path / "found.json"
    done = subprocess.run(
        [
            *(sys.executable, "experiments/q_learning.py", "tiny", "300", str(output)),
            *("es_manager.val.env_groups=4", "es_manager.val.group_size=1"),
        ],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.exists(), done.stderr
    found = json.loads(output.read_text())
    assert found["steps"] == 300
    assert 0 <= found["on other puzzles"] <= found["on the puzzle itself"] == 1

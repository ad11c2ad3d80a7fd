"""The scripts of `experiments/`."""

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

"""A method is one file of `spa.methods`: nothing else knows its name."""

import subprocess
import sys
from pathlib import Path

FILE = """
from spa.methods import Method

METHODS = {"zeta": Method(description="loss on nothing", overrides=("sft.data.loss_on=zeta",))}


def sft_mask(message, ids, template):
    return [False] * len(ids)


def annotate(batch, episodes, context):
    return batch
"""

USE = """
import sys
import spa.methods

spa.methods.__path__.append(sys.argv[1])
from spa.config.load import load_config
from spa_sweeps.methods import method, method_names
from spa.plugins import defined_by_methods
from spa.worldmodel.sequences import sft_mask

assert load_config("tiny", method("zeta").overrides).sft.data.loss_on == "zeta"
assert "zeta" in method_names()
assert sft_mask("zeta")({}, [1, 2], None) == [False, False]
print(*defined_by_methods("annotate"))
"""


def test_a_file_in_the_folder_is_a_method_of_sft_ppo_and_comparisons(tmp_path: Path):
    (tmp_path / "zeta.py").write_text(FILE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        *("act_focus", "correct_predictions", "echo", "imagined_advantage", "zeta", "paw", "replay")
    ]

"""The short form of `make test-extra NAME=siege`: some of each of its cheap parts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SIEGE = Path(__file__).with_name("siege.py")
sys.path.insert(0, str(SIEGE.parent))

import overnight  # noqa: E402 - found through the path above
from invariant import differs_by_rounding  # noqa: E402


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


def test_a_night_that_is_broken_off_says_what_is_broken(tmp_path, monkeypatch, capsys):
    def one_launch(night: overnight.Night) -> str:
        mark = night.folder / "run" / "ppo" / "global_step_1" / "complete.json"
        mark.parent.mkdir(parents=True)
        mark.write_text("{")
        night.siege.judge("overnight", "launch 1", "", "status 70")
        return "refused"

    monkeypatch.setattr(overnight.Night, "one_launch", one_launch)
    monkeypatch.setattr(sys, "argv", ["overnight.py", "--folder", str(tmp_path / "night")])
    monkeypatch.setenv("PYTHONPATH", "")
    assert overnight.main() == 1
    broken = ["overnight: launch 1: status 70", "overnight: launches: broken off after 0 launches"]
    assert f"broken: {broken}" in capsys.readouterr().out
    assert json.loads((tmp_path / "night" / "report.json").read_text())["broken"] == broken


LOST = {"episode_id": "train/1/0/0", "stop": "error", "logprobs": None}
KEPT = {
    "episode_id": "train/1/0/1",
    "stop": "success",
    "token_ids": [3, 4],
    "total_reward": 1.0,
    "logprobs": [-0.5, -1.5],
}
LINE = {"step": 2, "train/Lake/errors": 1.0, "rollout/is_mean": 1.0, "train/Lake/success": 0.5}


@pytest.mark.parametrize(
    ("rows", "changed", "forgiven"),
    [
        ([LOST, KEPT], {"logprobs": [-0.5, -1.500001]}, True),
        ([LOST, KEPT], {"logprobs": [-0.5, -1.5001]}, False),
        ([LOST, KEPT], {"logprobs": [-0.5]}, False),
        ([KEPT, KEPT], {"logprobs": [-0.5, -1.500001]}, False),  # nobody else shared their batch
        ([LOST, KEPT], {"token_ids": [3, 5]}, False),
        ([LOST, KEPT], {"total_reward": 1.0000001}, False),
        ([LINE], {"rollout/is_mean": 1.000001}, True),
        ([LINE], {"train/Lake/success": 0.5000001}, False),
        ([LINE | {"train/Lake/errors": 0.0}], {"rollout/is_mean": 1.000001}, False),
    ],
)
def test_only_the_last_digits_of_the_engines_log_probs_are_forgiven_and_only_beside_a_lost_episode(
    tmp_path, rows, changed, forgiven
):
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    one.write_text("".join(json.dumps(row) + "\n" for row in [*rows[:-1], rows[-1] | changed]))
    other.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert differs_by_rounding(one, other) is forgiven

"""The experiment script that plays the searches that a format writes from true copies."""

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "true_searches.py"


@pytest.mark.parametrize("preset", ["smol_sokoban_search", "smol_hidden_lake"])
def test_true_searches_win(preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    output = tmp_path / "result.json"
    settings = ["model_path=builtin:tiny", "es_manager.val.env_groups=3"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), preset, str(output), *settings])
    runpy.run_path(str(SCRIPT))
    result = json.loads(output.read_text())
    assert result["won"] == 1.0
    assert all(1 <= len(puzzle["tokens"]) <= 5 for puzzle in result["puzzles"])
    short = [*settings, "actor_rollout_ref.rollout.response_length=8"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), preset, str(output), *short])
    runpy.run_path(str(SCRIPT))
    assert json.loads(output.read_text())["won_within_response_length"] == 0.0

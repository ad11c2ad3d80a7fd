"""The commands that docs/bridges.md prints run all three stages on a task of each library that is installed."""

import importlib.util
import re
from pathlib import Path

import pytest

from spa.cli import main
from spa.envs.registry import libraries, library_named

PAGE = (Path(__file__).parents[2] / "docs" / "bridges.md").read_text(encoding="utf-8")
NAMED = re.findall(r"spa run small\.yaml custom_envs\.Game\.env_type=((\w+):\S+)", PAGE)
INSTALLED = [
    task for task, bridge in NAMED if importlib.util.find_spec(library_named(bridge).package)
]


def test_the_page_names_a_task_of_every_library():
    assert {bridge for _, bridge in NAMED} == set(libraries())


@pytest.mark.parametrize("task", INSTALLED)
def test_all_three_stages_run_on_a_bridge(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (small,) = re.findall(r"```yaml\n# small\.yaml\n(.*?)```", PAGE, re.S)
    Path("small.yaml").write_text(small, encoding="utf-8")
    short = ["actor_rollout_ref.rollout.response_length=16", "ctx_manager.example=false"]
    assert main(["run", "small.yaml", f"custom_envs.Game.env_type={task}", *short]) == 0
    lines = [
        len(Path(f"runs/small/{stage}/metrics.jsonl").read_text().split())
        for stage in ("data", "sft", "ppo")
    ]
    assert min(lines) >= 2 and Path("runs/small/ppo/global_step_2").is_dir()

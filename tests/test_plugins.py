"""Another package's games, engines, methods and commands have the rights of the shipped ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.light import HEAVY
from helpers.plugin_package import install

from spa.errors import ConfigError
from spa.formats.plan_first import PlanFirst
from spa.plugins import by_unique_name

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package in it, as pip installs it."""
    return install(EXAMPLE, tmp_path_factory.mktemp("plugin") / "site")


def python(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package on its path, in its folder."""
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *words],
        cwd=site.parent,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


IN_ONE_PROCESS = """
import contextlib, io, json, sys
from spa.cli import main
for line in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            status = main(line.split())
        except SystemExit as stop:
            status = stop.code
    print(json.dumps([line, status, out.getvalue(), err.getvalue()]))
"""
COMPARE = "compare tiny --methods short_sight,short_sight_shuffled --dry-run"
EVAL = "eval builtin:tiny --config coins.yaml --output result.json actor_rollout_ref.rollout.name"
RIGHT = (
    "--help",
    "coins --help",
    "coins odds --help",
    "coins odds --flips 3",
    "env list",
    "env show coins",
    "env check coins",
    "config list methods",
    COMPARE,
    f"{EVAL}=always_heads",
)
WRONG = {
    "config show tiny generate.policy=q_learnin": ("generate.policy", "'q_learning'"),
    "config show tiny generate.mixture={q_learnin:1.0}": ("generate.mixture", "'q_learning'"),
    f"{EVAL}=always_head": ("actor_rollout_ref.rollout.name", "'always_heads'"),
}
"""Commands, the key that the message names, and what it proposes."""
COINS = """
defaults: [tiny]
custom_envs: {Coins: {env_type: coins, max_actions_per_traj: 12}}
es_manager:
  train: {env_configs: {tags: [Coins], n_groups: null}}
  val: {env_groups: 2, group_size: 1, env_configs: {tags: [Coins], n_groups: null}}
"""


@pytest.fixture(scope="module")
def said(site: Path) -> dict[str, tuple[int, str, str]]:
    """All commands of this file, run in one process: status, output and errors of each."""
    (site.parent / "coins.yaml").write_text(COINS, encoding="utf-8")
    done = python(site, "-c", IN_ONE_PROCESS, json.dumps([*RIGHT, *WRONG]))
    assert done.returncode == 0, done.stderr
    return {line: tuple(rest) for line, *rest in map(json.loads, done.stdout.splitlines())}


def printed(said: dict[str, tuple[int, str, str]], line: str) -> str:
    status, out, errors = said[line]
    assert status == 0, errors
    return out


def test_its_command_is_listed_explained_and_run(said):
    assert "Games of chance:\n  coins     odds\n" in printed(said, "--help")
    assert "compute how likely" in printed(said, "coins --help")
    assert "--flips N" in printed(said, "coins odds --help")
    assert printed(said, "coins odds --flips 3") == "0.1250\n"


def test_its_game_is_listed_shown_and_conforms(said):
    lines = [line.split()[:2] for line in printed(said, "env list").splitlines()]
    assert lines.count(["coins", "coins"]) == 1
    assert "six right in a row" in printed(said, "env show coins").lower()
    printed(said, "env check coins")


def test_its_method_is_listed_compared_and_has_a_control(said):
    assert "short_sight" in printed(said, "config list methods")
    plan = printed(said, COMPARE)
    assert "short_sight/ppo" in plan and "short_sight_shuffled/sft" in plan


def test_its_engine_plays_its_game(said, site):
    printed(said, f"{EVAL}=always_heads")
    result = json.loads((site.parent / "result.json").read_text(encoding="utf-8"))
    assert result["tags"]["Coins"]["puzzles"] == 2


@pytest.mark.parametrize("line", WRONG)
def test_what_no_package_registers_is_refused_by_name(said, line):
    status, _, errors = said[line]
    key, nearest = WRONG[line]
    assert status == 2 and key in errors and f"did you mean {nearest}?" in errors


def test_help_imports_records_of_commands_and_nothing_else(site):
    code = (
        "import sys\nfrom spa.cli import main\nmain(['--help'])\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "others = [name for name in sys.modules if name.startswith('spa_coins.')]\n"
        "sys.exit(f'{heavy} {others}' if heavy or others != ['spa_coins.commands'] else 0)"
    )
    done = python(site, "-c", code)
    assert done.returncode == 0, done.stderr


def test_other_commands_import_no_plugin(site):
    code = (
        "import sys\nfrom spa.cli import main\nmain(['config', 'show', 'tiny'])\n"
        "sys.exit(any(name.startswith('spa_coins') for name in sys.modules))"
    )
    assert python(site, "-c", code).returncode == 0


def test_a_package_that_cannot_be_imported_is_named(tmp_path):
    site = install(EXAMPLE, tmp_path / "site")
    (site / "spa_coins" / "commands.py").unlink()
    done = python(site, "-m", "spa", "--help")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "package spa-coins" in done.stderr and "spa_coins.commands:odds_command" in done.stderr
    done = python(site, "-m", "spa", "coins", "odds")
    assert done.returncode == 2 and "package spa-coins" in done.stderr


def test_a_package_cannot_replace_a_shipped_game(tmp_path):
    for folder in ("a_game", "z_game"):  # ours is neither first nor last on the path
        about = tmp_path / folder / f"{folder}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {folder}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[spa.envs]\nsokoban = nowhere:Game\n")
    code = (
        f"import sys\nsys.path[:0] = [{str(tmp_path / 'a_game')!r}]\n"
        f"sys.path.append({str(tmp_path / 'z_game')!r})\n"
        "from spa.envs.registry import env_class\nprint(env_class('sokoban').__name__)"
    )
    done = python(tmp_path / "site", "-c", code)
    assert done.stdout.strip() == "Sokoban", done.stderr


def test_two_response_formats_of_one_name_are_refused():
    class Own(PlanFirst):
        pass

    with pytest.raises(
        ConfigError, match=r"spa\.formats\.plan_first and .*test_plugins both .*'plan_first'"
    ):
        by_unique_name([PlanFirst(), Own()])

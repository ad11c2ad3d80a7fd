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
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(words)
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


def commands(site: Path, *lines: str) -> list[tuple[int, str, str]]:
    """Run several `spa` commands in one process; returns status, output and errors of each."""
    words = [line.split() for line in lines]
    done = python(site, "-c", IN_ONE_PROCESS, json.dumps(words))
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def spa(site: Path, *words: str) -> str:
    """Run `spa` and return what it prints."""
    done = python(site, "-m", "spa", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_command_is_listed_explained_and_run(site):
    assert "Games of chance:\n  coins     odds\n" in spa(site, "--help")
    assert "compute how likely" in spa(site, "coins", "--help")
    assert "--flips N" in spa(site, "coins", "odds", "--help")
    assert spa(site, "coins", "odds", "--flips", "3") == "0.1250\n"


def test_its_game_is_listed_shown_and_conforms(site):
    done = commands(site, "env list", "env show coins", "env check coins")
    assert [status for status, *_ in done] == [0, 0, 0], done
    (_, listed, _), (_, shown, _), _ = done
    assert [line.split()[:2] for line in listed.splitlines() if "coins" in line] == [
        ["coins", "coins"]
    ]
    assert "six right in a row" in shown.lower()


def test_its_method_is_listed_compared_and_has_a_control(site):
    compare = "compare tiny --methods short_sight,short_sight_shuffled --dry-run"
    (_, listed, _), (_, plan, _) = commands(site, "config list methods", compare)
    assert "short_sight" in listed
    assert "short_sight/ppo" in plan and "short_sight_shuffled/sft" in plan


def test_a_policy_that_no_package_registers_is_refused_by_name(site):
    overrides = ("generate.policy=q_learnin", "generate.mixture={q_learnin:1.0}")
    done = commands(site, *(f"config show tiny {override}" for override in overrides))
    for override, (status, _, errors) in zip(overrides, done, strict=True):
        assert status == 2 and "did you mean 'q_learning'?" in errors
        assert override.partition("=")[0] in errors


def test_its_engine_plays_its_game(site):
    (site.parent / "coins.yaml").write_text(
        "defaults: [tiny]\n"
        "custom_envs: {Coins: {env_type: coins, max_actions_per_traj: 12}}\n"
        "es_manager:\n"
        "  train: {env_configs: {tags: [Coins], n_groups: null}}\n"
        "  val: {env_groups: 2, group_size: 1, env_configs: {tags: [Coins], n_groups: null}}\n",
        encoding="utf-8",
    )
    line = (
        "eval builtin:tiny --config coins.yaml --output result.json actor_rollout_ref.rollout.name"
    )
    right, wrong = commands(site, f"{line}=always_heads", f"{line}=always_head")
    assert right[0] == 0, right
    result = json.loads((site.parent / "result.json").read_text(encoding="utf-8"))
    assert result["tags"]["Coins"]["puzzles"] == 2
    assert wrong[0] == 2 and "did you mean 'always_heads'?" in wrong[2]


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

import json
import subprocess
import sys

import pytest

from spa import cli
from spa.cli import execute
from spa.envs import cards
from spa.envs.frozen_lake import FrozenLake
from spa.errors import ConfigError


def test_the_table_lists_every_tag(capsys):
    assert execute(["env", "list"]) == 0
    out = capsys.readouterr().out
    for tag in (
        "SimpleSokoban",
        "HarderSokoban",
        "FrozenLake",
        "Sudoku",
        "Countdown",
        "WebShop",
        "2048",
        "RubiksCube",
    ):
        assert f"\n{tag} " in out
    assert "50.1%" in out and "value iteration" in out


def test_samples_as_json(capsys):
    assert execute(["env", "sample", "FrozenLakeNoSlip", "-n", "3", "--seed", "7", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["seed"] for row in rows] == [7, 8, 9]
    assert all(
        set(row) == {"seed", "state", "optimal_steps"} and row["optimal_steps"] >= 1 for row in rows
    )
    execute(["env", "sample", "FrozenLakeNoSlip", "-n", "1", "--seed", "9", "--json"])
    assert json.loads(capsys.readouterr().out) == rows[2]


def test_samples_as_text(capsys):
    execute(["env", "sample", "SimpleSokoban", "--state-text", "coords"])
    assert "seed 0" in (out := capsys.readouterr().out) and "layer (P) is at" in out


class Undescribed(FrozenLake):
    pass


def test_a_class_without_a_docstring_is_shown(capsys):
    tag = f"{__name__}:Undescribed"
    assert execute(["env", "show", tag]) == 0
    assert capsys.readouterr().out.startswith(f"{tag}: no docstring\n")


@pytest.mark.parametrize("args", [["sample", "SimpleSokobn"], ["measure", "FrozenLak"]])
def test_unknown_tags(args):
    with pytest.raises(ConfigError, match="did you mean"):
        execute(["env", *args])


@pytest.mark.parametrize(
    "args", [["sample"], ["sample", "FrozenLake", "-n", "-1"], ["sample", "FrozenLake", "-n", "x"]]
)
def test_wrong_arguments_are_argparse_errors(args):
    with pytest.raises(SystemExit) as stop:
        execute(["env", *args])
    assert stop.value.code == 2


@pytest.mark.parametrize("command", ["env play", "env prompt"])
def test_a_negative_seed_is_an_argparse_error(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([*command.split(), "FrozenLake", "--seed", "-1"])
    assert stop.value.code == 2 and "--seed: -1 is negative" in capsys.readouterr().err


def test_measure_writes_cards(tmp_path, capsys):
    path = tmp_path / "new" / "cards.json"
    assert execute(["env", "measure", "FrozenLakeNoSlip", "--write", str(path)]) == 0
    told = json.loads(path.read_text())
    assert told["made_by"].startswith(
        f"spa env measure FrozenLakeNoSlip --write {path}, on the puzzles"
    )
    (row,) = told["cards"]
    assert row["tag"] == "FrozenLakeNoSlip" and row["optimum"] == 1.0


class NoSolver(FrozenLake):
    def best_success(self, limit):
        return None


def test_an_unknown_optimum_names_what_to_implement(tmp_path, capsys):
    config = tmp_path / "game.yaml"
    game = f"{{env_type: '{__name__}:NoSolver', max_actions_per_traj: 2}}"
    config.write_text(f"defaults: [base, _self_]\ncustom_envs:\n  Game: {game}\n")
    assert execute(["env", "measure", "Game", "--config", str(config)]) == 0
    said = (
        "Game: success rate of the optimum unknown (implement optimal_steps or best_success in "
        "the environment), of random play "
    )
    assert capsys.readouterr().err.startswith(said)


def test_cards_that_could_not_be_written_are_not_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "measure", lambda *args: pytest.fail("it was measured"))
    with pytest.raises(ConfigError, match="the path is a folder"):
        execute(["env", "measure", "FrozenLakeNoSlip", "--write", str(tmp_path)])


@pytest.mark.parametrize(
    "command",
    ["env list", "env sample WebShop", "env sample VisualSimpleSokoban", "env play Sudoku"],
)
def test_looking_and_playing_do_not_wait_for_torch(command):
    code = (
        "import sys; from spa.cli import main\n"
        f"status = main({command.split()!r})\n"
        "sys.exit('loaded torch' if 'torch' in sys.modules or 'transformers' in sys.modules else status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout, done.stderr

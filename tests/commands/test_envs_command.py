import json
import subprocess
import sys

from spa.cli import execute


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


def test_measure_writes_cards(tmp_path, capsys):
    path = tmp_path / "new" / "cards.json"
    assert execute(["env", "measure", "FrozenLakeNoSlip", "--output", str(path)]) == 0
    told = json.loads(path.read_text())
    assert told["made_by"].startswith(
        f"spa env measure FrozenLakeNoSlip --output {path}, on the puzzles"
    )
    (row,) = told["cards"]
    assert row["tag"] == "FrozenLakeNoSlip" and row["optimum"] == 1.0


def test_looking_and_playing_do_not_wait_for_torch():
    code = (
        "import sys; from spa.cli import main\n"
        "for line in ('env list', 'env sample WebShop', 'env sample VisualSimpleSokoban', 'env play Sudoku'):\n"
        "    assert main(line.split()) == 0, line\n"
        "    assert not {'torch', 'transformers'} & set(sys.modules), line\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout, done.stderr

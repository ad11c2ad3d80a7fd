"""One table of users' errors: each command ends with status 2 and a message that names the place and the remedy."""

import shlex
from pathlib import Path

import pytest

from spa import cli

ERRORS = [
    ("run demo last maybe", "GENERATE_DATA is 'maybe'", "use True"),
    ("run demo newest", "CKPT is 'newest'", "use last or a step number"),
    ("run demo ² False", "CKPT is '²'", "use last or a step number"),
    ("run demo 20", "CKPT is 20", "spa run demo 20 False"),
    ("run demo 20 True", "CKPT is 20", "spa run demo 20 False"),
    ("run nowhere.yaml", "nowhere.yaml", "one of _10_sudoku"),
    ("run demo trainer.total_trainig_steps=3", "trainer.total_trainig_steps", "trainer.total_training_steps?"),
    ("run demo last True --stages sft", "--stages", "give only one"),
    ("run demo --stages selfplay,ppo", "selfplay, ppo", "consecutive stages of selfplay, sft, ppo"),
    ("run demo --stages play", "play", "consecutive stages of selfplay, sft, ppo"),
    ("run demo --method vanilla --stages sft", "vanilla", "give no other stage"),
    ("run demo --method grid", "'grid'", "choose from vanilla"),
    ("run demo --method vanilla ctx_manager.mode=add_worldmodel", "ctx_manager.mode", "choose the baseline vanilla_wm"),
    ("run demo --method state_estimation state_text=grid", "state_text is grid_and_coords", "Leave out the override"),
    ("run demo --stages ppo es_manager.train.env_groups=0", "es_manager.train.env_groups", "at least 1"),
    ("run demo --stages ppo es_manager.train.env_groups=1 es_manager.train.group_size=2", "ppo_num_mini_batches", "at most 2"),
    ("run demo last False trainer.run_dir=empty", "empty/sft", "model_path=FOLDER"),
    ("run demo --stages ppo model_path=./nothing", "./nothing", "builtin:tiny"),
    ("compare demo --seeds 0", "--seeds", "at least 1"),
    ("compare demo --sweep algorithm.gamma=1,0.9 --methods echo", "sweep", "either methods or the values"),
    ("compare demo --method echo --dry-run", "no sweep", "name it in `methods`"),
    ("compare demo --methods maskd_states", "'maskd_states'", "'masked_states'"),
    ("compare demo trainer.also_test_at=5", "trainer.also_test_at", "Remove the setting"),
    ("compare demo generate.output_dir=x", "generate.output_dir", "Remove the setting"),
    ("eval random --config demo --world-model --state-perplexity", "--state-perplexity", "give only one"),
    ("eval random expert --config demo --output x.json", "--output", "remove --output"),
    ("eval random", "configuration", "--config"),
    ("eval random --config demo --prices 1,2", "--prices", "remove --prices"),
    ("eval random --config demo --dry-run --prices cheap", "--prices is 'cheap'", "such as 0.15,0.60"),
    ("eval random --config demo --greedy", "--greedy", "add --world-model"),
    ("eval random --config demo --states 3", "--states", "add --state-perplexity"),
    ("eval random --config demo --world-model --k 8", "--k", "remove --k or --world-model"),
    ("eval random --config demo --dry-run --k 0", "--k is '0'", "at least 1"),
    ("eval random --config demo --dry-run --k eight", "--k is 'eight'", "whole numbers"),
    ("eval random --config demo --k ²", "--k is '²'", "whole numbers"),
    ("eval random --config demo --puzzles 0", "puzzles", "at least 1"),
    ("eval no/such/folder --config demo --dry-run", "no/such/folder", "Name the folder"),
    ("eval run/spa/ppoo", "run/spa/ppoo", "Name the folder"),
    ("eval run --config demo", "run has neither a model", "Checkpoints are in run/spa/ppo."),
    ("eval random --config demo --output kept.json", "kept.json", "Choose another file"),
    ("eval random --config demo --output m1.5-sampled", "m1.5-sampled", "name ends in .json"),
    ("eval random --config demo --output file/result.json", "file/result.json", "Choose another file"),
    ("eval random --config demo --output /proc/no/result.json", "/proc/no/result.json", "Choose another file"),
    ("doctor trainer.threads=4", "overrides", "add --fit CONFIG"),
    ("doctor ./nothing --fit tiny", "nothing", "Name an existing folder"),
    ("doctor --fit base --gpu-memory 0", "--gpu-memory", "greater than 0"),
    ("doctor folder", "folder has no run", "`spa runs`"),
    ("bench paper nothing", "'nothing'", "choose from main"),
    ("bench paper main --only Chess", "--only Chess", "--dry-run"),
    ("bench paper main --seeds 0 --dry-run", "--seeds", "at least 1"),
    ("bench paper main --only Sudoku/spa --root file/grid", "file/grid", "Choose another file"),
    ("bench paper main --only Sudoku/spa --notes no.json", "--notes no.json", "Give a JSON file"),
    ("config show nothing", "'nothing'", "one of _10_sudoku"),
    ("config", "needs an action", "choose from list, show"),
    ("env smaple", "'smaple'", "choose from list, show, sample"),
    ("reprt", "'reprt'", "`spa report`"),
    ("env play SimpleSokobn", "'SimpleSokobn'", "'SimpleSokoban'"),
    ("env measure FrozenLak", "'FrozenLak'", "'FrozenLake'"),
    ("env measure FrozenLakeNoSlip --output folder", "folder", "Choose another file"),
    ("env measure --model builtin:tiny", "0 are named", "name one"),
    ("env shop --port 99999 --no-browser", "port 99999", "--port 0"),
    ("report mistyped", "mistyped", "Give the directory of a run"),
    ("diagnose no.jsonl", "no.jsonl", "Give a .jsonl"),
    ("diagnose file state_text=coords", "state_text=coords", "Add --env"),
    ("data filter --in-train no.parquet --in-val no.parquet --out-dir out", "no.parquet", "generate the data"),
    ("model push folder me/agent", "folder", "Give the data folder"),
]  # fmt: skip
"""Command, the place that its message names (key path, option, file), and the remedy."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands of the table find where they run."""
    for name in ("run/spa/ppo/global_step_3", "kept.json", "folder"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("command", "place", "remedy"), ERRORS, ids=[row[0] for row in ERRORS])
def test_an_error_names_its_place_and_its_remedy(
    folder: None, capsys: pytest.CaptureFixture[str], command: str, place: str, remedy: str
):
    words = shlex.split(command)
    assert cli.main(words) == 2
    told = capsys.readouterr()
    said = told.err
    assert "Traceback" not in said + told.out
    assert said.startswith((f"spa {words[0]}: ", f"spa {' '.join(words[:2])}: ", "spa: "))
    message = said.partition(": ")[2]
    assert place in message and remedy in message

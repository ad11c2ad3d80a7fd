"""What environments and file names hold reaches a terminal as text, never as control characters."""

import json
from pathlib import Path

import pytest

from spa.cli import main

ESCAPE = "\x1b]0;owned\x07\x9b31m\u202e"
GAME = f"""
from spa.envs.frozen_lake import FrozenLake

class Hostile(FrozenLake):
    def state_text(self, kind=None):
        return super().state_text(kind) + {ESCAPE!r}

    def step(self, action):
        state, *rest = super().step(action)
        return state + {ESCAPE!r}, *rest
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "hostile_game.py").write_text(GAME)
    (tmp_path / "hostile.yaml").write_text(
        "defaults: [base]\ncustom_envs: {Hostile: {env_type: 'hostile_game:Hostile', max_actions_per_traj: 10}}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["env", "prompt", "Hostile", "--config", "hostile.yaml"],
        [
            "env",
            "prompt",
            "Hostile",
            "--config",
            "hostile.yaml",
            "--tokens",
            "model_path=builtin:tiny",
        ],
        ["env", "play", "Hostile", "--config", "hostile.yaml"],
        ["env", "sample", "Hostile", "--config", "hostile.yaml"],
        ["env", "sample", "Hostile", "--config", "hostile.yaml", "--json"],
    ],
)
def test_text_of_an_environment_is_escaped(folder: Path, capsys, monkeypatch, words: list[str]):
    with (folder / "typed").open("w+") as typed:
        typed.write("right\ndown\n")
        typed.seek(0)
        monkeypatch.setattr("sys.stdin", typed)
        assert main(words) == 0
    out = capsys.readouterr().out
    assert not set(out) & set(ESCAPE.replace("0;owned", "").replace("31m", "").replace("]", ""))
    assert "\\u202e" in out or "--tokens" in words  # the tokenizer has no such character
    if "--json" in words:
        assert ESCAPE in json.loads(out.splitlines()[0])["state"]


def test_a_file_name_in_a_finding_is_escaped(folder: Path, capsys):
    row = {"prompt": "x", "completion": "y", "completion_ids": [1, 2], "completion_mask": [1]}
    path = folder / f"rollouts{ESCAPE}.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert main(["diagnose", str(path), "--html", f"page{ESCAPE}.html"]) == 0
    out = capsys.readouterr().out
    assert (
        "mask whose length differs" in out
        and "\x1b" not in out
        and "\u202e" not in out
        and "\x9b" not in out
    )

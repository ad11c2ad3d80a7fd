"""Lines of trajectory files that a crash, a disk or an editor has changed: every page is made of the others."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spa.cli import main
from spa_report.reading_shape import is_episode, is_head

ODD = (None, 3, "x", [], {}, [None], [3], 1e999)


def changed(value: Any) -> Iterator[Any]:
    """`value` with each key of each mapping in it gone, misspelt, or holding something else."""
    if isinstance(value, dict):
        for key, item in value.items():
            others = {name: kept for name, kept in value.items() if name != key}
            yield from (others, others | {f"{key}_": item}, *(value | {key: odd} for odd in ODD))
            yield from (value | {key: part} for part in changed(item))
    elif isinstance(value, list):
        yield from ([part, *value[1:]] for part in (changed(value[0]) if value else ()))


def wrong_shapes(line: bytes) -> bytes:
    episode = json.loads(line)
    episode["messages"], episode["turns"] = episode["messages"][:1], episode["turns"][:1]
    return b"".join(json.dumps(one).encode() + b"\n" for one in changed(episode))


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "shapes": wrong_shapes,
    "deep": lambda line: b'{"turns":' + b"[" * 100_000 + b"\n",
    "no UTF-8": lambda line: line.replace(b'"content":"', b'"content":"\xff'),
    "a number without end": lambda line: line.replace(
        b'"group":', b'"group":' + b"9" * 5000 + b',"x":'
    ),
    "a torn line": lambda line: line[: len(line) // 2],
}


@pytest.fixture
def run(demo: Path, tmp_path: Path) -> Path:
    return shutil.copytree(demo, tmp_path / "run")


def harmed(run: Path, harm: Callable[[bytes], bytes]) -> None:
    """Harm lines of every validation; one line, of the last validation of SPA, for all shapes."""
    paths = sorted(run.rglob("val-*.jsonl"))
    if harm is wrong_shapes:
        paths = [path for path in paths if "spa" in path.parts][-1:]
    for path in paths:
        lines = path.read_bytes().splitlines(keepends=True)
        last = lines[6] if harm is wrong_shapes else harm(lines[6])
        path.write_bytes(b"".join([harm(lines[0]), *lines[1:6], last]))


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("words", [["report", "{}"], ["view", "{}", "--export", "v"]])
def test_every_page_is_made_of_the_other_lines(run, tmp_path, monkeypatch, capsys, harm, words):
    monkeypatch.chdir(tmp_path)
    harmed(run, HARMS[harm])
    assert main([word.format(run) for word in words]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("words", [["report", "{}"], ["view", "{}", "--export", "v"]])
def test_what_is_no_file_is_no_file_of_episodes(run, tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    first, second = sorted(run.rglob("spa/ppo/trajectories/val-*.jsonl"))[-2:]
    first.unlink()
    first.symlink_to("nowhere")
    second.unlink()
    second.mkdir()
    assert main([word.format(run) for word in words]) == 0, capsys.readouterr().err


def test_lines_as_they_are_written_have_the_shape(demo):
    lines = [
        line
        for path in demo.rglob("trajectories/*.jsonl")
        for line in path.read_bytes().splitlines()
    ]
    assert lines and all(
        is_head(json.loads(line)) and is_episode(json.loads(line)) for line in lines
    )

"""Lines of trajectory files that a crash, a disk or an editor has changed: every page is made of the others."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_fixtures import write_stage

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


HARMS: tuple[Callable[[bytes], bytes], ...] = (
    lambda line: b'{"turns":' + b"[" * 100_000 + b"\n",
    lambda line: line.replace(b'"content":"', b'"content":"\xff'),
    lambda line: line.replace(b'"group":', b'"group":' + b"9" * 5000 + b',"x":'),
    lambda line: line[: len(line) // 2],  # torn, as at the end of a file that a crash cut
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods with two validations of eight episodes each."""
    run = tmp_path_factory.mktemp("damaged") / "run"
    for arm in ("spa", "vanilla"):
        write_stage(run / arm / "ppo", arm=arm, seed=1, steps=5)
    return run


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "run")


def shape(run: Path) -> None:
    """All wrong shapes of one line, in the last validation of SPA."""
    path = max(run.glob("spa/**/val-*.jsonl"))
    first, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([wrong_shapes(first), *others]))


def damage(run: Path) -> None:
    """Every harm in every validation, with sound lines among them."""
    for path in run.rglob("val-*.jsonl"):
        lines = path.read_bytes().splitlines(keepends=True)
        for place, harm in zip((0, 2, 4, -1), HARMS, strict=True):
            lines[place] = harm(lines[place])
        path.write_bytes(b"".join(lines))


def replace_files(run: Path) -> None:
    """What has the name of a file of episodes and is none."""
    first, second = sorted(run.rglob("spa/ppo/trajectories/val-*.jsonl"))[-2:]
    first.unlink()
    first.symlink_to("nowhere")
    second.unlink()
    second.mkdir()


@pytest.mark.parametrize("change", [shape, damage, replace_files])
def test_every_page_is_made_of_the_other_lines(run, tmp_path, monkeypatch, capsys, change):
    monkeypatch.chdir(tmp_path)
    change(run)
    for words in (["report", str(run)], ["view", str(run), "--export", "v"]):
        assert main(words) == 0, capsys.readouterr().err


def test_lines_as_they_are_written_have_the_shape(demo):
    lines = [
        line
        for path in demo.rglob("trajectories/*.jsonl")
        for line in path.read_bytes().splitlines()
    ]
    assert lines and all(
        is_head(json.loads(line)) and is_episode(json.loads(line)) for line in lines
    )

"""Copies at a URL: whole or not used, as many as are kept, and never a reason for a run to end."""

import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
from helpers.families import small_model, tokenizer

from spa.errors import ConfigError, TrainingError
from spa.run.checkpoint import MARKER, damage, latest_checkpoint, save_checkpoint, step_of
from spa.run.copies import Mirror


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4()}/ppo"


def save(url: str, directory: Path, step: int, **settings: Any) -> Path:
    """A checkpoint and its copy."""
    folder = save_checkpoint(
        directory,
        step,
        model=small_model("qwen2"),
        tokenizer=tokenizer("qwen2"),
        state={"step": step},
        **settings,
    )
    (directory / "metrics.jsonl").write_text(f'{{"step": {step}}}\n')
    assert Mirror(url).copy(directory, keep=settings.get("keep"))
    return folder


def copied(url: str) -> list[int]:
    fs, root = fsspec.url_to_fs(url)
    return sorted(
        step_of(Path(name)) for name in fs.ls(root, detail=False) if "global_step_" in name
    )


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_another_machine_gets_the_newest_that_is_whole(url, tmp_path, caplog):
    one, other = tmp_path / "one", tmp_path / "other"
    assert not Mirror(url).fetch(other)
    for step in (1, 2, 3):
        save(url, one, step)
    fs, root = fsspec.url_to_fs(url)
    fs.rm_file(f"{root}/global_step_3/{MARKER}")  # the copy was interrupted
    weights = fs.cat_file(f"{root}/global_step_2/model.safetensors")
    fs.pipe_file(f"{root}/global_step_2/model.safetensors", weights[:-1] + bytes([weights[-1] ^ 1]))
    assert Mirror(url).fetch(other)
    assert latest_checkpoint(other) == other / "global_step_1"
    assert files(other / "global_step_1") == files(one / "global_step_1")
    assert (other / "metrics.jsonl").read_text() == '{"step": 3}\n'
    assert sorted(path.name for path in other.iterdir()) == ["global_step_1", "metrics.jsonl"]
    for step, problem in ((3, "is incomplete"), (2, "model.safetensors has changed")):
        assert any(
            f"global_step_{step} " in line and problem in line for line in caplog.messages
        ), caplog.messages
    assert Mirror(url).copy(one, keep=None)  # what is not whole is copied again
    fs.invalidate_cache()
    assert fs.exists(f"{root}/global_step_3/{MARKER}")


def test_a_machine_with_older_checkpoints_gets_newer_copies(url, tmp_path, caplog):
    one, other = tmp_path / "one", tmp_path / "other"
    save(url, one, 1)
    assert Mirror(url).fetch(other)
    assert not Mirror(url).fetch(one, after=1)
    save(url, other, 2)
    assert Mirror(url).fetch(one, after=1)
    assert latest_checkpoint(one) == one / "global_step_2"
    assert (one / "metrics.jsonl").read_text() == '{"step": 2}\n'
    assert any("global_step_2" in line and "as new as the copy" in line for line in caplog.messages)


def test_as_many_are_kept_as_in_the_folder(url, tmp_path):
    for step in (1, 2, 3):
        save(url, tmp_path / "run", step, keep=2)
    assert copied(url) == [2, 3]
    save(url, tmp_path / "run", 4, keep=2, preemption=True)
    assert copied(url) == [2, 3, 4]
    save(url, tmp_path / "run", 5, keep=2)
    assert copied(url) == [3, 5]
    # a run that began anew: nothing of the old one's later steps is left
    save(url, tmp_path / "anew", 1, keep=2)
    assert copied(url) == [1]


def test_a_copy_that_fails_is_a_warning_and_made_up_for(tmp_path, caplog):
    way = tmp_path / "copies"
    way.write_text("a file where a folder should be")
    folder = save_checkpoint(
        tmp_path / "run", 1, model=small_model("qwen2"), tokenizer=tokenizer("qwen2")
    )
    mirror = Mirror(f"file://{way}/ppo")
    assert not mirror.copy(folder.parent, keep=None)
    (message,) = caplog.messages
    assert "could not copy" in message and "tries again" in message
    way.unlink()
    assert mirror.copy(folder.parent, keep=None)
    assert damage(way / "ppo" / "global_step_1") is None


def test_files_of_a_stage_come_back_whole_or_not_at_all(url, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    for name in ("a.parquet", "config.yaml"):
        (one / name).write_text(name)
    assert not Mirror(url).fetch(other)
    Mirror(url).copy_files(one, ["a.parquet"])
    assert Mirror(url).fetch(other)
    assert files(other) == files(one)
    fs, root = fsspec.url_to_fs(url)
    fs.pipe_file(f"{root}/a.parquet", b"changed")
    assert not Mirror(url).fetch(tmp_path / "third")
    assert not files(tmp_path / "third")


def test_a_marker_cannot_name_files_elsewhere(url, tmp_path):
    fs, root = fsspec.url_to_fs(url)
    fs.makedirs(f"{root}/global_step_1", exist_ok=True)
    fs.pipe_file(f"{root}/global_step_1/{MARKER}", b'{"sha256": {"../../x": "0"}}')
    assert Mirror(url).fetch(tmp_path / "run") is False


def test_a_url_that_cannot_be_used_is_one_clear_error(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"trainer\.default_hdfs_dir=nothing://x cannot be used"):
        Mirror("nothing://x")
    mirror = Mirror("memory://x")

    def unreachable(*args: Any, **settings: Any) -> bool:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(type(mirror._fs), "exists", unreachable)
    with pytest.raises(
        TrainingError, match=r"cannot read memory://x \(trainer\.default_hdfs_dir\): no route"
    ):
        mirror.fetch(tmp_path)
    # With a checkpoint in the folder the run goes on.
    assert not mirror.fetch(tmp_path, after=3)

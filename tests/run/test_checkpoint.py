"""Checkpoints are complete or not there at all, whatever happens to the disk or to the files."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from helpers.families import small_model, tokenizer

from spa.errors import ModelError, TrainingError
from spa.models.forward import Critic
from spa.models.load import load_critic, load_policy, load_tokenizer
from spa.run.checkpoint import (
    MARKER,
    archive_later_checkpoints,
    damage,
    find_checkpoint,
    latest_checkpoint,
    load_state,
    prune_checkpoints,
    save_checkpoint,
    step_of,
)
from spa.run.files import OLDER_COPIES, remove_leftovers

STATE = {
    "steps": 3,
    "moments": [{7: torch.arange(4.0), "flag": True}, {7: torch.tensor(2), "flag": None}],
    "rates": [1e-6, 0.1],
    "name": "adamw",
}


def save(directory: Path, step: int, **settings) -> Path:
    return save_checkpoint(
        directory, step, model=small_model("qwen2"), tokenizer=tokenizer("qwen2"), **settings
    )


def test_everything_comes_back(tmp_path):
    model, critic = small_model("qwen2"), Critic(small_model("qwen2", seed=1).base_model)
    torch.nn.init.normal_(critic.value_head.weight)
    folder = save_checkpoint(
        tmp_path, 3, model=model, tokenizer=tokenizer("qwen2"), critic=critic, state=STATE
    )
    assert (folder, step_of(folder), latest_checkpoint(tmp_path)) == (
        tmp_path / "global_step_3",
        3,
        folder,
    )
    again, judge = load_policy(str(folder)), load_critic(str(folder / "critic"))
    for a, b in ((model, again), (critic, judge)):
        saved, loaded = a.state_dict(), b.state_dict()
        assert all(torch.equal(saved[name], loaded[name]) for name in saved)
        assert saved.keys() == loaded.keys()
    assert load_tokenizer(str(folder)).get_vocab() == tokenizer("qwen2").get_vocab()
    assert load_tokenizer(str(folder)).chat_template == tokenizer("qwen2").chat_template


def test_a_state_keeps_its_kinds_and_its_keys(tmp_path):
    found = load_state(save(tmp_path, 1, state=STATE))
    assert found["moments"][0][7].tolist() == [0, 1, 2, 3]
    assert found["moments"][1][7].dtype == torch.int64
    assert [entry["flag"] for entry in found["moments"]] == [True, None]
    assert (found["steps"], found["rates"], found["name"]) == (3, [1e-6, 0.1], "adamw")


def test_nothing_but_safetensors_and_text_is_written(tmp_path):
    folder = save(tmp_path, 1, state=STATE)
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} <= {
        ".json",
        ".safetensors",
        ".jinja",
        ".txt",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"]


def test_old_checkpoints_go_only_after_the_new_one_is_there(tmp_path):
    for step in (2, 10, 9):
        save(tmp_path, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_10", "global_step_9"]
    save(tmp_path, 11)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_step_may_be_written_again(tmp_path):
    save(tmp_path, 1, state={"steps": 1})
    folder = save(tmp_path, 1, state={"steps": 2})
    assert load_state(folder)["steps"] == 2
    assert damage(folder) is None


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


HARM = {
    "weights cut": lambda folder: cut(folder / "model.safetensors"),
    "weights gone": lambda folder: (folder / "model.safetensors").unlink(),
    "state cut": lambda folder: cut(folder / "state" / "tensors.safetensors"),
    "no mark": lambda folder: (folder / MARKER).unlink(),
    "mark empty": lambda folder: (folder / MARKER).write_text(""),
    "mark cut": lambda folder: cut(folder / MARKER),
    "mark of another kind": lambda folder: (folder / MARKER).write_text("[1, 2]"),
    "mark without sums": lambda folder: (folder / MARKER).write_text('{"sha256": null}'),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_damaged_checkpoint_is_passed_over_with_a_message(tmp_path, caplog, harm):
    good = save(tmp_path, 1, state=STATE)
    bad = save(tmp_path, 2, state=STATE)
    HARM[harm](bad)
    assert damage(bad)
    assert latest_checkpoint(tmp_path) == good
    assert "global_step_2 is not usable" in caplog.text


@pytest.mark.parametrize(
    "name", ["model.safetensors", "state/tensors.safetensors", "tokenizer.json"]
)
def test_a_changed_bit_is_found_on_demand(tmp_path, name):
    folder = save(tmp_path, 1, state=STATE)
    assert damage(folder, hashes=True) is None
    flip(folder / name)
    assert damage(folder) is None
    assert damage(folder, hashes=True) == f"{name} has changed since it was written"


def test_a_half_written_folder_is_no_checkpoint(tmp_path):
    folder = save(tmp_path, 1)
    folder.rename(tmp_path / ".saving_global_step_1")  # killed before the rename
    assert latest_checkpoint(tmp_path) is None
    assert save(tmp_path, 1) == folder
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"]
    assert latest_checkpoint(tmp_path / "nowhere") is None


def steps(directory: Path) -> list[int]:
    return sorted(step_of(folder) for folder in directory.glob("global_step_*"))


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    save(tmp_path, 1).rename(tmp_path / ".saving_global_step_1")
    save(tmp_path, 2)
    (tmp_path / ".metrics.jsonl.123.tmp").write_text("half a li")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_2"]


def test_a_passing_checkpoint_goes_with_the_next_one_and_takes_nothing_with_it(tmp_path):
    save(tmp_path, 2, keep=1)
    save(tmp_path, 3, keep=1, preemption=True)
    assert steps(tmp_path) == [2, 3]
    assert latest_checkpoint(tmp_path) == tmp_path / "global_step_3"
    save(tmp_path, 5, keep=1, preemption=True)
    assert steps(tmp_path) == [2, 5]
    save(tmp_path, 6, keep=2)
    assert steps(tmp_path) == [2, 6]
    save(tmp_path, 8, keep=2)
    assert steps(tmp_path) == [6, 8]


def test_checkpoints_beyond_the_limit_are_removed(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    save(tmp_path, 4, preemption=True)
    prune_checkpoints(tmp_path, 2)
    assert steps(tmp_path) == [2, 3, 4]
    save(tmp_path, 5)
    prune_checkpoints(tmp_path, None)
    assert steps(tmp_path) == [2, 3, 5]


def test_a_damaged_later_checkpoint_does_not_cost_the_good_one(tmp_path, caplog):
    save(tmp_path, 2)
    cut(save(tmp_path, 4) / "model.safetensors")
    archive_later_checkpoints(tmp_path, 2)
    assert (
        "moved the checkpoints after step 2 to the archive" in caplog.text
        and (tmp_path / "previous" / "1" / "global_step_4").is_dir()
        and (tmp_path / OLDER_COPIES).is_file()
    )
    save(tmp_path, 3, keep=1)
    assert steps(tmp_path) == [3]
    save(tmp_path, 4)
    archive_later_checkpoints(tmp_path, 3)
    assert (tmp_path / "previous" / "2" / "global_step_4").is_dir()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files of this process cannot grow beyond `size` bytes, as if the disk were full."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("fits", ["nothing", "configuration", "weights", "optimizer"])
def test_a_full_disk_leaves_one_message_and_the_checkpoint_before(tmp_path, fits):
    state = {"moments": torch.zeros(300_000)}
    good = save(tmp_path, 1, state=STATE)
    weights = (good / "model.safetensors").stat().st_size
    size = {"nothing": 10, "configuration": 8_000, "weights": weights, "optimizer": weights + 1000}[
        fits
    ]
    with (
        largest_file(size),
        pytest.raises(TrainingError, match=r"global_step_2.*could not be written.*disk space"),
    ):
        save(tmp_path, 2, state=state)
    assert [path.name for path in tmp_path.iterdir()] == ["global_step_1"]
    assert latest_checkpoint(tmp_path) == good
    assert save(tmp_path, 2, state=state, keep=1).is_dir()


def test_checkpoints_are_found_by_number_and_by_last(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    assert find_checkpoint(tmp_path, "last") == tmp_path / "global_step_2"
    assert find_checkpoint(tmp_path, "1") == tmp_path / "global_step_1"
    # a downloaded one
    assert find_checkpoint(tmp_path / "global_step_1", "last") == tmp_path / "global_step_1"
    with pytest.raises(ModelError, match=r"no checkpoint '7' \(steps found: 1, 2\)"):
        find_checkpoint(tmp_path, "7")
    with pytest.raises(ModelError, match=r"no checkpoint 'last' \(steps found: none\)"):
        find_checkpoint(tmp_path / "empty", "last")


def test_a_checkpoint_that_is_asked_for_by_number_must_be_whole(tmp_path):
    cut(save(tmp_path, 1) / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"global_step_1.*model\.safetensors has \d+ bytes instead of"
    ):
        find_checkpoint(tmp_path, "1")


def test_checkpoints_of_other_trainers_are_taken_as_they_are(tmp_path):
    for step in (5, 20):
        small_model("qwen2").save_pretrained(tmp_path / f"global_step_{step}")
    (tmp_path / "global_step_30").mkdir()  # nothing in it
    assert latest_checkpoint(tmp_path) is None  # there is nothing to resume from
    assert find_checkpoint(tmp_path, "last") == tmp_path / "global_step_20"
    assert find_checkpoint(tmp_path, "5") == tmp_path / "global_step_5"


def test_an_error_that_is_not_the_disks_stays_what_it_is(tmp_path):
    with pytest.raises(TypeError):
        save(tmp_path, 1, state={"seen": {1, 2}})
    assert list(tmp_path.iterdir()) == []


def test_the_mark_names_every_file(tmp_path):
    folder = save(tmp_path, 4, state=STATE)
    mark = json.loads((folder / MARKER).read_text())
    named = set(mark["sha256"])
    assert mark["sizes"] == {name: (folder / name).stat().st_size for name in named}
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert named == there - {MARKER}
    assert {"config.json", "model.safetensors", "tokenizer.json", "state/state.json"} <= named

"""The record of a stage's folder, and what it says may be done with the folder."""

import pytest
from helpers.stages import mark_finished

from spa.errors import ConfigError, DataError
from spa.run.fingerprint import Fingerprint
from spa.run.manifest import (
    MANIFEST,
    Manifest,
    archive_work,
    batch_file,
    changes,
    is_finished,
    refuse_other_work,
    result_of,
    sizes_of,
    whole_batches,
)


def fingerprint(stage="selfplay", parent=None, **settings) -> Fingerprint:
    return Fingerprint(stage=stage, settings=settings, content={}, parent=parent)


DATA = fingerprint(rate=1)
SFT = fingerprint("sft", DATA, epochs=2)


def test_a_manifest_comes_back_as_it_was_written(tmp_path):
    known = Manifest(fingerprint=SFT, sizes={"a": 3}, result="global_step_3", seconds=2.5)
    known.write(tmp_path)
    assert Manifest.read(tmp_path) == known
    assert is_finished(tmp_path, SFT) and not is_finished(
        tmp_path, fingerprint("sft", DATA, epochs=3)
    )


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", '{"seconds": 1}', '{"fingerprint": {"stage": "sft"}}']
)
def test_one_that_cannot_be_read_is_none(tmp_path, text):
    if text is not None:
        (tmp_path / MANIFEST).write_text(text)
    assert Manifest.read(tmp_path) is None and result_of(tmp_path) is None
    assert changes(tmp_path, SFT) == {}  # there is no work
    (tmp_path / "metrics.jsonl").write_text('{"step":1,"a":2}\n')
    assert changes(tmp_path, SFT) == {
        "record of the stage": ("missing or damaged", "needed (manifest.json)")
    }


def test_a_change_is_named_where_it_was_made_and_once(tmp_path):
    folders = [tmp_path / name for name in ("data", "sft")]
    for folder, known in zip(folders, (DATA, SFT), strict=True):
        mark_finished(folder, known)
    other = fingerprint(rate=2)
    chain = [(folders[0], other), (folders[1], fingerprint("sft", other, epochs=2))]
    with pytest.raises(ConfigError) as refused:
        refuse_other_work(chain)
    assert str(refused.value).count("rate: 1 → 2") == 1 and str(folders[1]) not in str(
        refused.value
    )
    archive_work(folders[0])  # as good as deleted: the later stage knows what it was made of
    with pytest.raises(ConfigError, match=rf"{folders[1]} contains the work .*\n  rate: 1 → 2"):
        refuse_other_work(chain)
    refuse_other_work([(folders[1], SFT)])


def test_archiving_leaves_the_stage_of_another_run_as_it_is(tmp_path):
    own, other = tmp_path / "own" / "sft", tmp_path / "other" / "sft"
    mark_finished(other, SFT)
    before = sorted(other.rglob("*"))
    own.parent.mkdir()
    own.symlink_to(other)
    archive_work(own)
    assert not own.exists() and sorted(other.rglob("*")) == before


def test_data_of_another_size_are_refused_and_missing_ones_made_again(tmp_path, caplog):
    file = tmp_path / "wm_train.parquet"
    file.write_text("rows")
    Manifest(fingerprint=DATA, sizes=sizes_of(tmp_path, "*.parquet"), result=".").write(tmp_path)
    assert result_of(tmp_path) == tmp_path
    file.write_text("other rows")
    with pytest.raises(DataError, match=r"wm_train\.parquet has 10 bytes, but the stage wrote 4"):
        result_of(tmp_path)
    file.unlink()
    assert result_of(tmp_path) is None and "wm_train.parquet is missing" in caplog.text


def test_batches_count_as_far_as_they_are_whole(tmp_path, caplog):
    (tmp_path / "trajectories").mkdir()
    for batch in (3, 4, 5):
        (tmp_path / batch_file(batch)).write_text("episodes\n")
    Manifest(fingerprint=DATA, sizes=sizes_of(tmp_path, "trajectories/*")).write(tmp_path)
    assert (whole_batches(tmp_path, 2), whole_batches(tmp_path)) == (5, 0)
    (tmp_path / batch_file(4)).write_text("episo")
    assert whole_batches(tmp_path, 2) == 3 and "the stage plays this batch again" in caplog.text


def test_damaged_files_of_a_finished_stage_are_named_once(tmp_path, caplog):
    (tmp_path / "trajectories").mkdir()
    for batch in (1, 2):
        (tmp_path / batch_file(batch)).write_text("episodes\n")
    sizes = sizes_of(tmp_path, "trajectories/*")
    Manifest(fingerprint=DATA, sizes=sizes, result=".").write(tmp_path)
    assert result_of(tmp_path) == tmp_path and not caplog.text
    for batch in (1, 2):
        (tmp_path / batch_file(batch)).write_text("episo")
    assert result_of(tmp_path) == tmp_path
    assert "5 bytes, but the stage wrote 9 bytes (and 1 more)" in caplog.text

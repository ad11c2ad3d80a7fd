"""Published data sets and checkpoints, in every layout that they come in."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.families import template
from helpers.model_folders import save_family

from spa.config.load import load_config
from spa.errors import DataError, ModelError
from spa.models.load import load_critic, load_policy
from spa.plugins import translated
from spa.recipes import pipeline
from spa.worldmodel import sft_data
from spa.worldmodel.sft_data import data_files
from spa.worldmodel.sft_files import read_examples

MESSAGES = [{"role": "system", "content": "You play."}, {"role": "user", "content": "State:\nS0"}]
RESPONSE = "<think>\n<observation>\nS0\n</observation>\ngo\n<prediction>\nS1\n</prediction>\n</think>\n<answer>Up</answer>"
CONSTANTS = {
    "data_source": "sokoban",
    "ability": "bfs",
    "reward_model": "{'style': 'rule', 'ground_truth': ''}",
    "extra_info": "{'split': 'train'}",
}


def write(path, prompts):
    """A file with the six columns that were published."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [value] * len(prompts) for name, value in CONSTANTS.items()}
    pq.write_table(
        pa.table({**columns, "prompt": prompts, "response": [RESPONSE] * len(prompts)}), path
    )


LAYOUTS = {"list": MESSAGES, "json": json.dumps(MESSAGES)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "files",
    [
        {"train": "wm_train.parquet", "val": "wm_val.parquet"},
        {"train": "data/train-00000-of-00001.parquet", "val": "data/test-00000-of-00001.parquet"},
        {"train": "train.parquet", "val": "validation.parquet"},
    ],
)
def test_fine_tuning_starts_from_every_layout(layout, files, tmp_path):
    folder = tmp_path / "SPA-sokoban-data"
    for split, count in (("train", 3), ("val", 1)):
        write(folder / files[split], [LAYOUTS[layout]] * count)
    cfg = load_config(
        "_2_sokoban", [f"data.train_files={folder}", f"data.val_files={folder}", "model_path=x/y"]
    )
    train, val = sft_data.load_data(cfg, template("qwen2"), None)
    assert (sum(s.examples for s in train), sum(s.examples for s in val)) == (3, 1)
    text = template("qwen2").tokenizer.decode(train[0].token_ids[train[0].mask])
    assert "S1" in text and text.endswith("<answer>Up</answer><|im_end|>")
    assert "S0" in template("qwen2").tokenizer.decode(train[0].token_ids[~train[0].mask])


def test_prompts_may_be_arrays(tmp_path):
    from spa.worldmodel.sft_files import read_messages

    assert read_messages(np.array(MESSAGES, dtype=object)) == MESSAGES
    write(tmp_path / "a.parquet", [MESSAGES])
    write(tmp_path / "b.parquet", [json.dumps(MESSAGES)])
    rows = [read_examples(tmp_path / name)[0] for name in ("a.parquet", "b.parquet")]
    assert rows[0].prompt == rows[1].prompt == tuple(MESSAGES)
    assert (rows[0].state, rows[0].next_state, rows[0].executed) == ("S0", "S1", ("Up",))


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match="Generate data"):
        data_files(str(tmp_path / "wm_train.parquet"), "train")
    with pytest.raises(
        DataError, match=r"Name the file train\.jsonl, train\.json or train\.parquet"
    ):
        data_files(str(tmp_path), "train")


def test_configured_files_win_over_the_run_folder(tmp_path):
    write(tmp_path / "given.parquet", [MESSAGES] * 2)
    write(tmp_path / "run" / "wm_train.parquet", [MESSAGES] * 5)
    given = tmp_path / "given.parquet"
    cfg = load_config("_2_sokoban", [f"data.train_files={given}", f"data.val_files={given}"])
    train, _ = sft_data.load_data(cfg, template("qwen2"), tmp_path / "run")
    assert sum(sequence.examples for sequence in train) == 2


def test_data_and_checkpoints_in_the_folders_of_the_original(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("wm_train.parquet", "wm_val.parquet"):
        write(tmp_path / "sftdata" / "_2_sokoban-1.5B-text_with_coordinates" / name, [MESSAGES])
    cfg = load_config("_2_sokoban")
    assert sft_data.find_data(cfg, None).name == "_2_sokoban-1.5B-text_with_coordinates"
    assert sft_data.find_data(load_config("_3_frozen_lake"), None).parts[-1] == "data"

    base = save_family("qwen2", tmp_path / "base")
    folder = tmp_path / "sftckpt" / "checkpoints_2_sokoban-1.5B-text_with_coordinates-qwen"
    shutil.copytree(base, folder / "global_step_1505")
    found = pipeline.find_sft_checkpoint(cfg, tmp_path / "runs" / "sft", "last")
    assert found.resolve() == (folder / "global_step_1505").resolve()
    assert pipeline.find_sft_checkpoint(cfg, tmp_path / "runs" / "sft", "1505") == found
    shutil.rmtree(folder)
    shutil.copytree(base, folder)  # downloaded straight into the folder
    found = pipeline.find_sft_checkpoint(cfg, tmp_path / "runs" / "sft", "last")
    load_policy(str(found))
    load_critic(str(found))
    shutil.rmtree(folder)
    cfg = load_config("_2_sokoban", [f"model_path={base}"])
    assert pipeline.find_sft_checkpoint(cfg, tmp_path / "runs" / "sft", "last") == base
    with pytest.raises(
        ModelError, match=r"sft: the folder has no checkpoint of step 7.*write last"
    ):
        pipeline.find_sft_checkpoint(cfg, tmp_path / "runs" / "sft", "7")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tyzhu/SPA-sokoban-qwen2.5-1.5b-instruct", True),
        ("sftckpt/checkpoints_10_sudoku-1.5B-text_with_coordinates-qwen", True),
        ("Qwen/Qwen2.5-1.5B-Instruct", False),
        ("runs/sokoban-main/sft/global_step_300", False),
    ],
)
def test_published_checkpoints_are_said_to_know_other_prompts(name, said):
    assert ("envs.yaml" in "".join(translated("model_notes", name))) == said

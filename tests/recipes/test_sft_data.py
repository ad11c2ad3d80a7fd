"""What SFT reads of files that spa did not write: pictures, column types, layouts."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.families import template
from helpers.vision import save_seeing

from spa.config.load import load_config
from spa.errors import DataError
from spa.models.build import load_template
from spa.models.vision import to_png
from spa.worldmodel import sft_data
from spa.worldmodel.sft_files import read_examples

PICTURE = to_png(np.full((28, 28, 3), 200, np.uint8))
RESPONSE = "<think>\n<observation>\nS0\n</observation>\n</think>\n<answer>Up</answer>"
LAYOUTS = {
    "bytes": PICTURE,
    "struct": {"bytes": PICTURE, "path": None},
    "path": {"bytes": None, "path": "board.png"},
}


def shown(folder: Path, picture: object, mark: str = "<image>", **columns: object) -> Path:
    """A file with one example whose prompt shows a picture."""
    (folder / "board.png").write_bytes(PICTURE)
    example = {
        "prompt": [{"role": "user", "content": f"State:\n{mark}"}],
        "response": RESPONSE,
        "images": [picture],
        **columns,
    }
    pq.write_table(pa.Table.from_pylist([example]), folder / "train.parquet")
    return folder / "train.parquet"


def config(file: Path, *overrides: str):
    return load_config(
        "_2_sokoban", [f"data.train_files={file}", f"data.val_files={file}", *overrides]
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mark", ["<image>", "no mark"])
def test_pictures_are_refused_for_a_model_that_reads_text(layout, mark, tmp_path):
    file = shown(tmp_path, LAYOUTS[layout], mark)
    with pytest.raises(DataError, match=r"train\.parquet, row 0: .* reads only text"):
        sft_data.load_data(config(file), template("qwen2"), None)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_that_sees_gets_the_pictures(layout, tmp_path):
    file = shown(tmp_path, LAYOUTS[layout])
    model = save_seeing("qwen2_vl", tmp_path / "model")
    cfg = config(file, f"model_path={model}")
    seeing = load_template(cfg, str(model))
    assert seeing.images is not None
    (sequence,), _ = sft_data.load_data(cfg, seeing, None)
    assert sequence.images == (PICTURE,)
    marks = (sequence.token_ids == seeing.images.image_id).sum()
    assert marks == seeing.images.lengths([PICTURE])[0]
    file = shown(tmp_path, LAYOUTS[layout], "no mark")
    with pytest.raises(DataError, match="row 0: 1 picture, but 0 <image> marks"):
        sft_data.load_data(cfg, seeing, None)


def test_a_picture_that_is_not_there_is_named(tmp_path):
    file = shown(tmp_path, LAYOUTS["path"])
    (tmp_path / "board.png").unlink()
    with pytest.raises(DataError, match=r"row 0, column 'images'.*board\.png"):
        read_examples(file)


@pytest.mark.parametrize(
    ("column", "value"), [("executed", [1, 2]), ("images", ["x", "y"]), ("images", [7])]
)
def test_the_values_inside_a_column_are_checked(column, value, tmp_path):
    example = {"prompt": [{"role": "user", "content": "x"}], "response": RESPONSE, column: value}
    pq.write_table(pa.Table.from_pylist([example]), tmp_path / "f.parquet")
    with pytest.raises(DataError, match=f"row 0, column '{column}'"):
        read_examples(tmp_path / "f.parquet")

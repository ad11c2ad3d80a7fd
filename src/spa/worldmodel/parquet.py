"""Write world-model data as Parquet files, with the columns of the original's published data
followed by metadata columns. `sft_files.py` reads them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spa.errors import DataError
from spa.formats.blocks import as_unicode
from spa.run.files import open_atomic
from spa.types import SFTExample

TRAIN_FILE = "wm_train.parquet"
VAL_FILE = "wm_val.parquet"

SCHEMA = pa.schema(
    [
        # The original's six columns.
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("response", pa.string()),
        ("ability", pa.string()),
        ("reward_model", pa.string()),
        ("extra_info", pa.string()),
        # The columns that spa adds.
        ("episode_id", pa.string()),
        ("turn", pa.int32()),
        ("puzzle_seed", pa.int64()),
        ("puzzle_hash", pa.string()),
        ("success", pa.bool_()),
        ("reward", pa.float64()),
        ("state", pa.string()),
        ("next_state", pa.string()),
        ("executed", pa.list_(pa.string())),
        ("predicted", pa.string()),
        ("observed", pa.string()),
    ]
)
IMAGES = pa.field("images", pa.list_(pa.binary()))
"""Column of PNG files, for data whose prompts show images."""


def write_parquet(path: Path | str, examples: Sequence[SFTExample]) -> None:
    """Write examples atomically.

    Lone surrogates, which UTF-8 cannot encode, become U+FFFD. Raises DataError if the file cannot
    be written (disk full, no permission). In this case, an existing file at `path` is not changed.
    """
    schema = SCHEMA.append(IMAGES) if any(example.images for example in examples) else SCHEMA
    write_table(
        path, pa.Table.from_pylist([_record(example) for example in examples], schema=schema)
    )


def write_table(path: Path | str, table: pa.Table) -> None:
    """Write a table to a temporary file next to `path`, flush it to disk, and rename it to `path`.
    Raises DataError if it cannot be written."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_atomic(path) as file:
            # Checksums reveal damage when the file is read.
            pq.write_table(table, file, write_page_checksum=True)
    except OSError as error:
        raise DataError(
            f"{path}: the file cannot be written ({error}); free disk space or choose another path"
        ) from error


def puzzles_in(files: Iterable[Path]) -> frozenset[str] | None:
    """Return the content hashes of the puzzles in data files; None if one of the files does not
    record them."""
    puzzles: set[str] = set()
    for file in files:
        if file.suffix != ".parquet" or "puzzle_hash" not in pq.read_schema(file).names:
            return None
        puzzles.update(pq.read_table(file, columns=["puzzle_hash"]).column(0).to_pylist())
    return frozenset(puzzles)


def _record(example: SFTExample) -> dict[str, Any]:
    return {
        "data_source": example.tag,
        "prompt": [
            {"role": message["role"], "content": as_unicode(message["content"])}
            for message in example.prompt
        ],
        "response": as_unicode(example.response),
        "ability": "world_model",
        "reward_model": json.dumps({"style": "rule", "ground_truth": example.next_state}),
        "extra_info": json.dumps(example.extra),
        "episode_id": example.episode_id,
        "turn": example.turn,
        "puzzle_seed": example.puzzle_seed,
        "puzzle_hash": example.puzzle_hash,
        "success": example.success,
        "reward": example.reward,
        "state": as_unicode(example.state),
        "next_state": as_unicode(example.next_state),
        "executed": [as_unicode(action) for action in example.executed],
        "predicted": None if example.predicted is None else as_unicode(example.predicted),
        "observed": None if example.observed is None else as_unicode(example.observed),
        "images": list(example.images),
    }

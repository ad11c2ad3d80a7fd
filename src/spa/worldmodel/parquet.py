"""World-model rows in parquet files: the columns that the original publishes, and metadata in
columns of our own."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spa.errors import DataError, one_line
from spa.formats.blocks import as_unicode, find_block
from spa.formats.registry import parse_reply
from spa.types import Message, WorldModelRow

TRAIN_FILE = "wm_train.parquet"
VAL_FILE = "wm_val.parquet"
ROLES = ("system", "user", "assistant")

SCHEMA = pa.schema(
    [
        # the original's six columns
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("response", pa.string()),
        ("ability", pa.string()),
        ("reward_model", pa.string()),
        ("extra_info", pa.string()),
        # the columns that spa adds
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
"""A column of PNG files, in data whose prompts show pictures."""


def write_parquet(path: Path | str, rows: Sequence[WorldModelRow]) -> None:
    """Write examples; the file appears complete or not at all.

    Lone surrogates, which UTF-8 cannot hold, become U+FFFD. Raises DataError if the file cannot be
    written (disk full, no permission); what stood at `path` before is then untouched.
    """
    schema = SCHEMA.append(IMAGES) if any(row.images for row in rows) else SCHEMA
    write_table(path, pa.Table.from_pylist([_record(row) for row in rows], schema=schema))


def write_table(path: Path | str, table: pa.Table) -> None:
    """Write a table next to `path`, flush it to the disk, and rename it to `path`. Raises
    DataError."""
    path = Path(path)
    # `remove_leftovers` knows this pattern.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            # With checksums, so that damage is found when the file is read.
            pq.write_table(table, file, write_page_checksum=True)
            # The content is on the disk before the file gets its name: a power cut leaves the old
            # file or the whole new one.
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise DataError(
            f"{path}: the file cannot be written ({error}); free disk space or choose another path"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def read_table(path: Path | str) -> pa.Table:
    """The file's table. Raises DataError if it is missing, not a parquet file, or has no prompt or
    response column."""
    path = Path(path)
    if not path.is_file():
        raise DataError(
            f"{path}: the file does not exist; generate the data (spa run --stages "
            "selfplay), or set data.train_files and data.val_files"
        )
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: the file is not readable parquet ({one_line(error)}); generate or "
            "download the file again"
        ) from error
    for column in ("prompt", "response"):
        if column not in table.column_names:
            raise DataError(
                f"{path}: the column {column!r} is missing (columns: "
                f"{', '.join(table.column_names) or 'none'}); world-model data needs the "
                "columns 'prompt' and 'response'"
            )
    return table


def read_parquet(path: Path | str) -> list[WorldModelRow]:
    """Examples of a file written by `write_parquet` or published by the original (`prompt` a list
    or a JSON string).

    Metadata that a file does not have is taken from the example itself. States and actions come
    from the response, the puzzle hash from the prompt up to the first user message, which shows the
    initial state.

    Raises DataError naming file, row (counted from 0) and column, and what to do.
    """
    table = read_table(path)
    folder = Path(path).parent
    return [
        _row(record, f"{path}, row {index}", index, folder)
        for index, record in enumerate(table.to_pylist())
    ]


def puzzles_in(files: Iterable[Path]) -> frozenset[str] | None:
    """Content hashes of the puzzles in data sets; None if one of the files does not say whose its
    examples are."""
    found: set[str] = set()
    for file in files:
        if "puzzle_hash" not in pq.read_schema(file).names:
            return None
        found.update(pq.read_table(file, columns=["puzzle_hash"]).column(0).to_pylist())
    return frozenset(found)


def parse_prompt(value: Any, where: str = "prompt") -> tuple[Message, ...]:
    """A prompt cell as messages: a list or array of role/content structs, or the same as a JSON
    string.

    Raises DataError beginning with `where`.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{where}, column 'prompt': the value is not valid JSON ({error}); remove or "
                "repair the row"
            ) from error
    messages = []
    for item in value if _is_sequence(value) else ():
        role, content = (
            (item.get("role"), item.get("content")) if isinstance(item, dict) else (None, None)
        )
        if role not in ROLES or not isinstance(content, str):
            raise DataError(
                f"{where}, column 'prompt': message {len(messages)} needs a role "
                f"({', '.join(ROLES)}) and a string as content; remove or repair the row"
            )
        messages.append({"role": role, "content": content})
    if not messages:
        raise DataError(
            f"{where}, column 'prompt': the value is not a list of messages; remove or repair "
            "the row"
        )
    return tuple(messages)


def _is_sequence(value: Any) -> bool:
    # pandas gives the cells of a list column as NumPy arrays, which are no `Sequence`.
    return isinstance(value, Sequence) or (hasattr(value, "tolist") and hasattr(value, "__len__"))


def _row(record: dict[str, Any], where: str, index: int, folder: Path) -> WorldModelRow:
    prompt = parse_prompt(record["prompt"], where)
    response = record["response"]
    if not isinstance(response, str) or not response.strip():
        raise DataError(
            f"{where}, column 'response': the value is empty or not a string; run `spa data "
            "filter` to remove such examples"
        )

    def given(
        column: str, kind: type | tuple[type, ...], default: Any, items: type | None = None
    ) -> Any:
        value = record.get(column)
        if value is None:
            return default
        whole = isinstance(value, kind)
        if not whole or (items and not all(isinstance(item, items) for item in value)):
            raise DataError(
                f"{where}, column {column!r}: the value {value!r} has the wrong type; remove "
                "the column"
            )
        return value

    # Published files have no metadata: states and actions are read from the response.
    reply = parse_reply(response, mode="add_worldmodel", max_actions=100)
    return WorldModelRow(
        prompt=prompt,
        response=response,
        tag=given("data_source", str, ""),
        episode_id=given("episode_id", str, f"row-{index}"),
        turn=given("turn", int, sum(message["role"] == "assistant" for message in prompt)),
        puzzle_seed=given("puzzle_seed", int, -1),
        puzzle_hash=given("puzzle_hash", str, None) or _prompt_hash(prompt),
        success=given("success", bool, False),
        reward=given("reward", (int, float), 0.0),
        state=given("state", str, _block(response, "observation")),
        next_state=given("next_state", str, _block(response, "prediction")),
        executed=tuple(given("executed", list, reply.actions, str)),
        predicted=given("predicted", str, None),
        observed=given("observed", str, None),
        images=tuple(
            _picture(picture, folder, f"{where}, column 'images'")
            for picture in given("images", list, [])
        ),
        extra=_extra(record.get("extra_info")),
    )


def _picture(value: Any, folder: Path, where: str) -> bytes:
    """The picture's file: its bytes, its path (relative to the data), or the struct of both that
    data sets of the Hub have."""
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        path = folder / value
        try:
            return path.read_bytes()
        except OSError as error:
            raise DataError(
                f"{where}: the picture {path} cannot be read ({error}); copy it there"
            ) from error
    if not isinstance(value, bytes):
        raise DataError(
            f"{where}: a picture must be the bytes of an image file, a path, or a struct "
            f"{{bytes, path}}, not {type(value).__name__}; correct or remove the column"
        )
    return value


def _block(text: str, tag: str) -> str:
    span = find_block(text, tag)
    # States are on lines of their own inside their block.
    return "" if span is None else text[span[0] : span[1]].strip("\n")


def _prompt_hash(prompt: Sequence[Message]) -> str:
    first = next(
        (message["content"] for message in prompt if message["role"] == "user"),
        prompt[0]["content"],
    )
    return hashlib.sha256(first.encode("utf-8", "surrogatepass")).hexdigest()


def _extra(text: Any) -> dict[str, Any]:
    """`extra_info` as a dict; what others put there (the original: a Python literal) is kept as
    text."""
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"extra_info": str(text)}


def _record(row: WorldModelRow) -> dict[str, Any]:
    return {
        "data_source": row.tag,
        "prompt": [
            {"role": message["role"], "content": as_unicode(message["content"])}
            for message in row.prompt
        ],
        "response": as_unicode(row.response),
        "ability": "world_model",
        "reward_model": json.dumps({"style": "rule", "ground_truth": row.next_state}),
        "extra_info": json.dumps(row.extra),
        "episode_id": row.episode_id,
        "turn": row.turn,
        "puzzle_seed": row.puzzle_seed,
        "puzzle_hash": row.puzzle_hash,
        "success": row.success,
        "reward": row.reward,
        "state": as_unicode(row.state),
        "next_state": as_unicode(row.next_state),
        "executed": [as_unicode(action) for action in row.executed],
        "predicted": None if row.predicted is None else as_unicode(row.predicted),
        "observed": None if row.observed is None else as_unicode(row.observed),
        "images": list(row.images),
    }

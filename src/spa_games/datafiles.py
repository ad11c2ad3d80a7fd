"""Readers of puzzle data: parquet and JSON-lines files, or a data set of the Hugging Face Hub."""

import importlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from spa.errors import DataError

SUFFIXES = (".parquet", ".jsonl")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data file.

    `source` is the file or data set, for error messages. `number` counts rows from 1; in a
    JSON-lines file, it is the line number. `values` maps columns to values.
    """

    source: str
    number: int
    values: Mapping[str, Any]

    def fail(self, column: str, wanted: str) -> DataError:
        """Return an error for an invalid value of `column` in this row. `wanted` describes a valid
        value."""
        shown = repr(self.values.get(column))
        shown = shown if len(shown) <= 80 else shown[:80] + "…"
        return DataError(
            f"{self.source}, row {self.number}, column {column!r}: expected {wanted}, got {shown}"
        )

    def text(self, column: str) -> str:
        """The column's text. Raises DataError if it is empty or not a string."""
        value = self.values[column]
        if not isinstance(value, str) or not value.strip():
            raise self.fail(column, "a string")
        return value

    def integer(self, column: str) -> int:
        """The column's integer. Raises DataError if it is not an integer."""
        value = self.values[column]
        if not _is_integer(value):
            raise self.fail(column, "an integer")
        return int(value)

    def integers(self, column: str) -> tuple[int, ...]:
        """The column's integers. Raises DataError if it is not a list of integers."""
        value = self.values[column]
        if (
            not isinstance(value, Sequence)
            or isinstance(value, str)
            or not all(map(_is_integer, value))
        ):
            raise self.fail(column, "a list of integers")
        return tuple(int(item) for item in value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def file_stamp(source: str) -> tuple[int, int] | None:
    """Modification time in nanoseconds and size in bytes of a local file, or None if there is no
    such file, as for a Hub name. Caches of the file's rows use it to detect changes."""
    try:
        status = Path(source).stat()
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size


def read_rows(
    source: str, columns: Sequence[str], *, split: str = "train", limit: int | None = None
) -> Iterator[Row]:
    """Read the first `limit` rows of `source`, or all rows if `limit` is None. Each row has at
    least `columns`.

    `source` is a `.parquet` or `.jsonl` file, or a Hub name or folder for `datasets.load_dataset`.
    `split` applies only to a Hub name or folder. Raises DataError if the source cannot be read or
    a column is missing. The error names the source and, if applicable, the row and column.
    """
    path = Path(source)
    if path.suffix in SUFFIXES:
        if not path.is_file():
            raise DataError(f"{source}: the data file does not exist; correct the path")
        rows = _parquet(source, columns) if path.suffix == ".parquet" else _jsonl(source, columns)
    elif path.is_file():
        raise DataError(
            f"{source}: the data file must end in {' or '.join(SUFFIXES)}; convert or rename the "
            "file"
        )
    else:
        rows = _hub(source, columns, split)
    return itertools.islice(rows, limit)


def _require(source: str, columns: Sequence[str], present: Sequence[str]) -> None:
    missing = [column for column in columns if column not in present]
    if missing:
        raise DataError(
            f"{source}: the column {', '.join(map(repr, missing))} is missing (columns: "
            f"{', '.join(present) or 'none'}); add the column or use another file"
        )


def _parquet(source: str, columns: Sequence[str]) -> Iterator[Row]:
    try:
        with pyarrow.parquet.ParquetFile(source) as table:
            _require(source, columns, table.schema_arrow.names)
            number = 0
            # A file may not fit into memory, so read a few thousand rows at a time, and only the
            # columns needed.
            for batch in table.iter_batches(batch_size=4096, columns=list(columns)):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(source, number, values)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"{source}: the file is not readable parquet ({error}); copy or download the file again"
        ) from error


def _jsonl(source: str, columns: Sequence[str]) -> Iterator[Row]:
    # The error message below needs a row number even if opening the file fails.
    number = 0
    try:
        with Path(source).open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                values = json.loads(line)
                if not isinstance(values, dict):
                    raise DataError(
                        f"{source}, row {number}: expected a JSON object, got {line.strip()[:80]}"
                    )
                _require(f"{source}, row {number}", columns, list(values))
                yield Row(source, number, values)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{source}, near row {max(number, 1)}: the file is not valid JSON lines "
            f"({error}); repair or remove the row"
        ) from error


def _hub(source: str, columns: Sequence[str], split: str) -> Iterator[Row]:
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise DataError(
            f"{source}: the path is no {' or '.join(SUFFIXES)} file on this machine. To load "
            "a Hugging Face data set of this name, run: pip install datasets"
        ) from error
    try:
        table = datasets.load_dataset(source, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{source}, split {split!r}: the Hugging Face data set cannot be loaded ({error}); "
            "check the name, the split and the network"
        ) from error
    _require(source, columns, table.column_names)
    for number, values in enumerate(table.select_columns(list(columns)), start=1):
        yield Row(source, number, values)

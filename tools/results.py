"""Results in benchmarks/results: one Parquet file a question, which holds the records of all its files.

    python tools/results.py FOLDER [QUESTION]     # packs the JSON and JSONL files of a folder
    python tools/results.py QUESTION --list       # prints the names of the files

A row is one record: the name of its file, its line (0 in a JSON file) and its text. Files that the question has
already are replaced, others are kept. `read` and `read_lines` return the records.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
SCHEMA = pa.schema([("file", pa.string()), ("line", pa.int32()), ("record", pa.string())])


def read(question: str, name: str) -> Any:
    """Return the content of a JSON file of a question."""
    (record,) = records(question)[name]
    return json.loads(record)


def read_lines(question: str, name: str) -> list[Any]:
    """Return the records of a JSONL file of a question."""
    return [json.loads(record) for record in records(question)[name]]


@cache
def records(question: str) -> dict[str, list[str]]:
    """File -> texts of its records, of all files of a question."""
    found: dict[str, list[str]] = {}
    table = pq.read_table(RESULTS / f"{question}.parquet", schema=SCHEMA)
    for row in table.to_pylist():
        found.setdefault(row["file"], []).append(row["record"])
    return found


def reference_success(name: str) -> dict[str, dict[str, float]]:
    """Reference policy -> its success on a board."""
    path = RESULTS / "reference" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["success"]


def texts(path: Path) -> Iterator[str]:
    """The records of a JSON or JSONL file, without white space between their parts."""
    text = path.read_text(encoding="utf-8")
    for record in text.splitlines() if path.suffix == ".jsonl" else [text]:
        yield json.dumps(json.loads(record), ensure_ascii=False, separators=(",", ":"))


def write(question: str, files: dict[str, list[str]]) -> Path:
    """Add the records of files to the Parquet file of a question. Returns its path."""
    path = RESULTS / f"{question}.parquet"
    found = (dict(records(question)) if path.is_file() else {}) | files
    rows = [
        {"file": name, "line": line, "record": record}
        for name, lines in sorted(found.items())
        for line, record in enumerate(lines)
    ]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    pq.write_table(table, path, compression="zstd", compression_level=19, data_page_size=1 << 26)
    records.cache_clear()
    return path


def main(arguments: list[str] | None = None) -> int:
    """Pack a folder, or list the files of a question. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Pack results into one Parquet file a question.")
    parser.add_argument("folder", type=Path, help="folder of JSON and JSONL files, or a question")
    parser.add_argument("question", nargs="?", help="name of the question (the folder's)")
    parser.add_argument("--list", action="store_true", help="print the files of the question")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(records(options.folder.name)))
        return 0
    files = {
        file.name: list(texts(file))
        for file in options.folder.iterdir()
        if file.suffix in (".json", ".jsonl")
    }
    print(write(options.question or options.folder.name, files))
    return 0


if __name__ == "__main__":
    sys.exit(main())

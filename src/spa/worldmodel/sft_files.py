"""Read examples for SFT from files: self-play data, published data sets, and chats from other
sources.

A file is JSON Lines, one JSON list, or Parquet. Its columns match one of `LAYOUTS`. Each row is
converted to a list of messages, and each assistant message that is trained on becomes one example.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spa.errors import DataError, one_line
from spa.formats.blocks import find_block
from spa.formats.registry import parse_response
from spa.types import IMAGE, Message, SFTExample

LAYOUTS = (("prompt", "response"), ("prompt", "completion"), ("messages",), ("conversations",))
"""Accepted columns, in order of precedence. The last column of a layout has the assistant messages
that are trained on."""

_JSON = (".jsonl", ".json")
ROLES = ("system", "user", "assistant")
# Roles in ShareGPT conversations, whose messages have the keys `from` and `value`.
_OTHER_ROLES = {"human": "user", "gpt": "assistant"}
_SAMPLE = {
    "messages": [
        {"role": "user", "content": "What is 2 + 3?"},
        {"role": "assistant", "content": "5"},
    ]
}

# A list of messages as a JSON string, complete or damaged.
_JSON_MESSAGES = re.compile(r'\s*\[\s*\{\s*"(role|content|from|value)"')

Record = dict[str, Any]


def read_examples(path: Path | str, *, last_response_only: bool = False) -> list[SFTExample]:
    """Read the examples of a file. Each assistant message of a chat gives one example; with
    `last_response_only`, only the last one does.

    Metadata that a file lacks is derived from the example: states and actions from the response,
    the puzzle hash from the prompt up to the first user message, which shows the initial state.

    Raises DataError, which names file, row and column, and how to fix them.
    """
    found = located_examples(path, last_response_only=last_response_only)
    return [example for _, example in found]


def located_examples(
    path: Path | str, *, last_response_only: bool = False
) -> Iterator[tuple[str, SFTExample]]:
    """Yield the examples of `read_examples`, each with its file and row for error messages."""
    path = Path(path)
    records = read_records(path)
    if not records:
        return
    layout = find_layout(path, columns_of([record for _, record in records]))
    for index, (where, record) in enumerate(records):
        messages, begin = _conversation(record, layout, where)
        trained = [
            place
            for place, message in enumerate(messages)
            if place >= begin and message["role"] == "assistant"
        ]
        if not trained:
            raise DataError(
                f"{where}, column {layout[-1]!r}: the chat has no assistant message, so there is "
                "nothing to train on; remove the row"
            )
        for place in trained[-1:] if last_response_only else trained:
            prompt = messages[:place]
            example = _example(record, prompt, messages[place]["content"], where, index, path)
            if place != trained[-1]:
                # Pictures of later messages are not in this prompt.
                example = replace(example, images=example.images[: picture_marks(prompt)])
            yield where, example


def picture_marks(prompt: Sequence[Message]) -> int:
    """Count the places of pictures in a prompt."""
    return sum(message["content"].count(IMAGE) for message in prompt)


def check_turns(where: str, example: SFTExample) -> None:
    """Raise DataError if user and assistant do not alternate in an example's chat."""
    roles = [message["role"] for message in example.prompt]
    turns = roles[1:] if roles[0] == "system" else roles
    # Chat templates write one user message before each response.
    if len(turns) % 2 == 0 or any(
        role != ("assistant" if place % 2 else "user") for place, role in enumerate(turns)
    ):
        raise DataError(
            f"{where}: the roles are {', '.join(roles)}, assistant. After an optional system "
            "message, user and assistant must alternate. Join or remove messages."
        )


def check_file(path: Path, *, last_response_only: bool = False) -> None:
    """Raise DataError if a file of examples is missing, unreadable or lacks columns, or if a row
    cannot be trained on."""
    for where, example in located_examples(path, last_response_only=last_response_only):
        check_turns(where, example)


def read_table(path: Path | str) -> pa.Table:
    """Read the rows of a file as a table. Raises DataError if the file cannot be read, or if a
    column has values of several types."""
    path = Path(path)
    if path.suffix not in _JSON:
        return _read_parquet(path)
    try:
        return pa.Table.from_pylist([record for _, record in _read_json(path)])
    except pa.ArrowException as error:
        raise DataError(
            f"{path}: the rows do not form a table, because a column has values of several types "
            f"({one_line(error)})"
        ) from error


def read_records(path: Path) -> list[tuple[str, Record]]:
    """Read the rows of a file, each with its location for error messages. Raises DataError if the
    file cannot be read."""
    if path.suffix in _JSON:
        return _read_json(path)
    records = _read_parquet(path).to_pylist()
    return [(f"{path}, row {index}", record) for index, record in enumerate(records)]


def columns_of(records: Sequence[Record]) -> list[str]:
    """Return the column names of records, in the order in which they first appear."""
    return list(dict.fromkeys(name for record in records for name in record))


def find_layout(path: Path, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the layout that matches a file's columns. Raises DataError if none does."""
    for layout in LAYOUTS:
        if all(column in columns for column in layout):
            return layout
    layouts = "; ".join(" and ".join(layout) for layout in LAYOUTS)
    raise DataError(
        f"{path}: the columns are not those of SFT data (columns: "
        f"{', '.join(map(str, columns)) or 'none'}). Name the columns as one of these layouts: "
        f"{layouts}. An example of a row:\n{json.dumps(_SAMPLE)}"
    )


def split_record(record: Record, layout: Sequence[str]) -> tuple[Any, Any]:
    """Return the prompt and the last response of a row without validation. `spa data filter`
    compares them."""
    if len(layout) == 2:
        return record.get(layout[0]), record.get(layout[1])
    messages = record.get(layout[0])
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], Mapping):
        return None, None
    return messages[:-1], messages[-1].get("content", messages[-1].get("value"))


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path}: the file is not readable parquet ({one_line(error)}); generate or "
        f"download the file again. JSON files must end in {' or '.join(_JSON)}"
    )


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise DataError(
            f"{path}: the file does not exist; generate the data (spa run --stages "
            "selfplay), or set data.train_files"
        )


def _read_parquet(path: Path) -> pa.Table:
    _require_file(path)
    try:
        return pq.read_table(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _read_json(path: Path) -> list[tuple[str, Record]]:
    """Read the objects of a JSON list or of JSON Lines. A file with the suffix .json may have
    either form."""
    _require_file(path)
    try:
        # `utf-8-sig`: editors may begin a file with a byte-order mark.
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: the file cannot be read ({error}); save it in UTF-8") from error
    if path.suffix == ".json" and text.lstrip().startswith("["):
        values = _parsed(text, str(path))
        named = [(f"{path}, row {index}", value) for index, value in enumerate(values)]
    else:
        named = [
            (where, _parsed(line, where))
            for number, line in enumerate(text.split("\n"), start=1)
            if line.strip() and (where := f"{path}, line {number}")
        ]
    for where, value in named:
        if not isinstance(value, dict):
            raise DataError(
                f"{where}: a row must be a JSON object with columns, such as {json.dumps(_SAMPLE)}"
            )
    return named


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: the text is not valid JSON ({one_line(error)}); a file holds one JSON "
            "object per line, or one JSON list (.json)"
        ) from error


def read_messages(value: Any, where: str = "prompt", column: str = "prompt") -> list[Message]:
    """Convert the value of a cell to messages. The value is a list or array of messages, a JSON
    string of such a list, or any other string, which becomes one user message.

    Raises DataError, whose text begins with `where`.
    """
    here = f"{where}, column {column!r}"
    if isinstance(value, str) and _JSON_MESSAGES.match(value):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{here}: the value is not valid JSON ({error}); remove or repair the row"
            ) from error
    if isinstance(value, str) and value.strip() not in ("", "[]", "null"):
        return [{"role": "user", "content": value}]
    messages: list[Message] = []
    for item in value if _is_sequence(value) else ():
        item = item if isinstance(item, Mapping) else {}
        named = item.get("role", item.get("from"))
        author = _OTHER_ROLES.get(str(named), named)
        content = _text(item.get("content", item.get("value")))
        if author not in ROLES or content is None:
            raise DataError(
                f"{here}: message {len(messages)} needs a role ({', '.join(ROLES)}) and a string "
                "as content; remove or repair the row"
            )
        messages.append({"role": str(author), "content": content})
    if not messages:
        raise DataError(
            f"{here}: the value is neither a string nor a list of messages; remove or repair "
            "the row"
        )
    return messages


def _text(content: Any) -> str | None:
    """Return the text of a message's content. In a list of parts, each image becomes a placeholder.
    None if the content is neither a string nor a list of texts and images."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if kind == "text" else IMAGE if kind == "image" else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "".join(texts)


def _is_sequence(value: Any) -> bool:
    # pandas returns the cells of a list column as NumPy arrays, which are not a `Sequence`.
    return not isinstance(value, str) and (
        isinstance(value, Sequence) or (hasattr(value, "tolist") and hasattr(value, "__len__"))
    )


def _conversation(
    record: Record, layout: Sequence[str], where: str
) -> tuple[tuple[Message, ...], int]:
    """Return the messages of a row, and the index of the first message that may be trained on."""
    messages = read_messages(record.get(layout[0]), where, layout[0])
    system = record.get("system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    if len(layout) == 1:
        return tuple(messages), 0
    response = record.get(layout[1])
    if response is None or (isinstance(response, str) and not response.strip()):
        raise DataError(
            f"{where}, column {layout[1]!r}: the value is empty or not a string; run `spa data "
            "filter` to remove such examples"
        )
    # A response that looks like JSON is text, not a list of messages.
    answer = (
        [{"role": "assistant", "content": response}]
        if isinstance(response, str)
        else read_messages(response, where, layout[1])
    )
    return (*messages, *answer), len(messages)


def _example(
    record: Record, prompt: tuple[Message, ...], response: str, where: str, index: int, path: Path
) -> SFTExample:
    if not prompt or not response.strip():
        raise DataError(
            f"{where}: an assistant message is empty or has no message before it; remove or repair "
            "the row"
        )

    def given(column: str, kind: type, default: Any, items: type | None = None) -> Any:
        value: Any = record.get(column)
        # pandas writes missing values as NaN, and integer columns with missing values as floats.
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return default
        if kind in (int, bool) and isinstance(value, float) and value.is_integer():
            value = int(value)
        if kind is bool and value in (0, 1):
            value = bool(value)
        if kind is float and isinstance(value, int):
            value = float(value)
        whole = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        entries = value if items and isinstance(value, list) else []
        if not whole or not all(isinstance(entry, items or object) for entry in entries):
            raise DataError(
                f"{where}, column {column!r}: the value {value!r} has the wrong type; remove "
                "the column"
            )
        return value

    # Published files have no metadata: states and actions are read from the response.
    parsed = parse_response(response, mode="add_worldmodel", max_actions=100)
    pictures = given("images", list, [])
    if record.get("image") is not None:
        pictures = [*pictures, record["image"]]
    return SFTExample(
        prompt=prompt,
        response=response,
        tag=given("data_source", str, ""),
        episode_id=given("episode_id", str, f"{path}-{index}"),
        turn=given("turn", int, sum(message["role"] == "assistant" for message in prompt)),
        puzzle_seed=given("puzzle_seed", int, -1),
        puzzle_hash=given("puzzle_hash", str, None) or _prompt_hash(prompt),
        success=given("success", bool, False),
        reward=given("reward", float, 0.0),
        state=given("state", str, _block(response, "observation")),
        next_state=given("next_state", str, _block(response, "prediction")),
        executed=tuple(given("executed", list, parsed.actions, str)),
        predicted=given("predicted", str, None),
        observed=given("observed", str, None),
        images=tuple(
            _picture(picture, path.parent, f"{where}, column 'images'") for picture in pictures
        ),
        extra=_extra(record.get("extra_info")),
    )


def _picture(value: Any, folder: Path, where: str) -> bytes:
    """Return the bytes of an image file. `value` is these bytes, a path relative to the data file,
    or the struct of both that Hub data sets use."""
    if isinstance(value, Mapping):
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
    # Inside a block, a state has its own lines, so strip the line breaks around it.
    return "" if span is None else text[span[0] : span[1]].strip("\n")


def _prompt_hash(prompt: Sequence[Message]) -> str:
    first = next(
        (message["content"] for message in prompt if message["role"] == "user"),
        prompt[0]["content"],
    )
    return hashlib.sha256(first.encode("utf-8", "surrogatepass")).hexdigest()


def _extra(text: Any) -> dict[str, Any]:
    """Parse `extra_info` as a dict. Anything else, such as the original's Python literal, is kept
    as text."""
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"extra_info": str(text)}

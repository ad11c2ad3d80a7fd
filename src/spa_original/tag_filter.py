"""The stand-alone filter for world-model data, which keeps examples whose response has the state
blocks.

It works on any file that SFT reads, including published ones, and keeps all columns. Like the
original's `sft/filter_sft_by_tag.py`, it checks only the structure, leniently and in any letter
case. The strict format is checked during relabelling.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from spa.errors import ConfigError
from spa.worldmodel.parquet import write_table
from spa.worldmodel.sft_files import LAYOUTS, find_layout, read_table, split_record

KEPT = "kept"
EMPTY = "empty_prompt_or_response"
NO_THINK = "no_think_block"
NO_ANSWER = "no_answer_block"
ANSWER_FIRST = "answer_before_think"
NO_STATES = "no_observation_or_prediction_in_think"
PREDICTION_FIRST = "prediction_before_observation"
TOO_SHORT = "too_short"
TOO_LONG = "too_long"
DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """Length bounds and duplicate handling. Raises ConfigError if no length satisfies the
    bounds."""

    # inclusive bounds on the length of the response in characters; None: no bound
    min_len: int | None = None
    max_len: int | None = None
    dedup: bool = True  # drop duplicate examples

    def __post_init__(self) -> None:
        low = self.min_len or 0
        high = self.max_len
        if low < 0 or (high is not None and high < low):
            raise ConfigError(
                f"No response can satisfy min-len {self.min_len} and max-len {self.max_len}; "
                "set 0 <= min-len <= max-len"
            )


def filter_files(
    in_train: Path, in_val: Path, out_dir: Path, options: FilterOptions
) -> dict[str, Counter[str]]:
    """Filter both files, and write `out_dir/wm_train.parquet` and `out_dir/wm_val.parquet`.

    Returns, for each output file name, the number of examples by verdict, which is `KEPT` or the
    reason for dropping. Both inputs are read before anything is written, so that they may be in
    `out_dir`. Raises DataError for unusable files.
    """
    results = {}
    for name, path in (("wm_train.parquet", in_train), ("wm_val.parquet", in_val)):
        table = read_table(path)
        results[name] = filter_table(table, options, find_layout(path, table.column_names))
    for name, (table, _) in results.items():
        write_table(Path(out_dir) / name, table)
    return {name: counts for name, (_, counts) in results.items()}


def filter_table(
    table: pa.Table, options: FilterOptions, layout: Sequence[str] = LAYOUTS[0]
) -> tuple[pa.Table, Counter[str]]:
    """Return the examples of `table` that pass, and the number of examples by verdict. Of equal
    examples, only the first is kept. `layout` names the columns of prompt and response, or one
    column with a chat, whose last message is the response."""
    seen: set[tuple[str, str]] = set()
    verdicts: list[str] = []
    for record in table.to_pylist():
        prompt, response = split_record(record, layout)
        verdict = check_example(prompt, response, options)
        if verdict == KEPT and options.dedup:
            # Prompts are lists or JSON strings. Lists are converted, because they are not hashable.
            key = (prompt if isinstance(prompt, str) else json.dumps(prompt, default=str), response)
            verdict = DUPLICATE if key in seen else KEPT
            seen.add(key)
        verdicts.append(verdict)
    mask = pa.array([verdict == KEPT for verdict in verdicts], type=pa.bool_())
    return table.filter(mask), Counter(verdicts)


def check_example(prompt: Any, response: Any, options: FilterOptions) -> str:
    """Return `KEPT`, or the reason for dropping the example."""
    if not prompt or (isinstance(prompt, str) and prompt.strip() in ("", "[]")):
        return EMPTY
    if not isinstance(response, str) or not response.strip():
        return EMPTY
    verdict = check_structure(response)
    if verdict != KEPT:
        return verdict
    if options.min_len is not None and len(response) < options.min_len:
        return TOO_SHORT
    if options.max_len is not None and len(response) > options.max_len:
        return TOO_LONG
    return KEPT


def check_structure(response: str) -> str:
    """Return `KEPT` if a think block starts before an answer block and contains an observation
    followed by a prediction. Otherwise return the reason for dropping the response.

    A block reaches from the first opening tag to the nearest closing tag after it. Later
    repetitions are ignored.
    """
    text = response.lower()
    think = _first_block(text, "think")
    answer = _first_block(text, "answer")
    if think is None:
        return NO_THINK
    if answer is None:
        return NO_ANSWER
    if answer[0] < think[0]:
        return ANSWER_FIRST
    inside = text[think[0] : think[1]]
    observation = _first_block(inside, "observation")
    prediction = _first_block(inside, "prediction")
    if observation is None or prediction is None:
        return NO_STATES
    return PREDICTION_FIRST if prediction[0] < observation[0] else KEPT


def _first_block(text: str, tag: str) -> tuple[int, int] | None:
    start = text.find(f"<{tag}>")
    if start < 0:
        return None
    end = text.find(f"</{tag}>", start)
    # `<tag>` is two characters longer than `tag`.
    return None if end < 0 else (start + len(tag) + 2, end)

"""Ablations of the data: the contents of the state blocks instead of the true states (arXiv
2510.15047).

All work on relabelled examples and change responses only, those in later examples' prompts
included: the states that the model is shown, and the metadata, stay true.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from spa.errors import DataError
from spa.formats.blocks import find_block, replace_state
from spa.seeds import stream
from spa.types import WorldModelRow
from spa.worldmodel.rows import is_branch, rewritten_history

States = Literal["ground_truth", "model", "random_coords"]
# In "(3,1)=4" the coordinate is (3,1); the 4 is a digit on the board.
_CELL = re.compile(r"\((\d+),(\d+)\)")


def with_states(rows: Sequence[WorldModelRow], states: States, *, seed: int) -> list[WorldModelRow]:
    """The examples with the states that an ablation asks for; `ground_truth` gives them back as they
    are."""
    if states == "model":
        return believed_states(rows)
    if states == "random_coords":
        return random_coordinates(rows, seed=seed)
    return list(rows)


def believed_states(rows: Sequence[WorldModelRow]) -> list[WorldModelRow]:
    """Every response says again what the model itself had written, instead of the truth. The answer
    stays corrected.

    Raises DataError for an example that does not say what the model had written (published data
    does not).
    """
    responses = []
    for row in rows:
        if row.observed is None or row.predicted is None:
            raise DataError(
                f"Episode {row.episode_id}, turn {row.turn}: the data lack the model's own "
                "predicted states; generate the data again with generate.states=model"
            )
        text = replace_state(row.response, "prediction", row.predicted)
        responses.append(replace_state(text, "observation", row.observed))
    return _rewritten(rows, responses)


def random_coordinates(rows: Sequence[WorldModelRow], *, seed: int) -> list[WorldModelRow]:
    """Every coordinate `(r,c)` in the state blocks of the responses becomes a random one, so that
    the format is right and the content is noise.

    Each number is uniform over the range that the true states of the example's environment tag use.
    Grids, digits behind coordinates (`(1,2)=4`), and words stay. Raises DataError if a tag's
    states have no coordinates.
    """
    ranges = {tag: _range(tag, rows) for tag in dict.fromkeys(row.tag for row in rows)}
    responses = []
    for index, row in enumerate(rows):
        rng, (low, high) = stream(seed, "random_coordinates", index), ranges[row.tag]
        text = row.response
        for tag in ("observation", "prediction"):
            # some response formats have no prediction
            if tag == "observation" or find_block(row.response, tag) is not None:
                text = replace_state(text, tag, _scattered(_block(row, tag), rng, low, high))
        responses.append(text)
    return _rewritten(rows, responses)


def _range(tag: str, rows: Sequence[WorldModelRow]) -> tuple[int, int]:
    states = (text for row in rows if row.tag == tag for text in (row.state, row.next_state))
    numbers = [int(number) for text in states for cell in _CELL.findall(text) for number in cell]
    if not numbers:
        raise DataError(
            f"{tag}: the states have no coordinates to randomize; set state_text to coords "
            "or grid_and_coords"
        )
    return min(numbers), max(numbers)


def _scattered(text: str, rng: np.random.Generator, low: int, high: int) -> str:
    return _CELL.sub(lambda _: "({},{})".format(*rng.integers(low, high + 1, size=2)), text)


def _block(row: WorldModelRow, tag: str) -> str:
    span = find_block(row.response, tag)
    if span is None:
        raise DataError(
            f"Episode {row.episode_id}, turn {row.turn}: the response must have exactly one "
            f"{tag} block; run `spa data filter` to remove other responses"
        )
    return row.response[span[0] : span[1]].strip("\n")


def _rewritten(rows: Sequence[WorldModelRow], responses: Sequence[str]) -> list[WorldModelRow]:
    by_turn = {
        (row.episode_id, row.turn): text
        for row, text in zip(rows, responses, strict=True)
        if not is_branch(row)
    }
    return [
        replace(row, response=text, prompt=rewritten_history(row, by_turn))
        for row, text in zip(rows, responses, strict=True)
    ]

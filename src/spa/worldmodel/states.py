"""Data ablations (arXiv 2510.15047): replace the true states in the state blocks of responses.

The functions take relabelled examples. They change only responses, including those that later
prompts repeat. The states that prompts show, and the metadata, remain true.
"""

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from spa.errors import DataError
from spa.formats.blocks import find_block, replace_state
from spa.seeds import stream
from spa.types import SFTExample
from spa.worldmodel.examples import block_of, with_responses

States = Literal["ground_truth", "model", "random_coords"]
# In "(3,1)=4" the coordinate is (3,1); the 4 is a digit on the board.
_CELL = re.compile(r"\((\d+),(\d+)\)")


def with_states(examples: Sequence[SFTExample], states: States, *, seed: int) -> list[SFTExample]:
    """Return the examples with states of the kind `states`. For `ground_truth`, they are
    unchanged."""
    if states == "model":
        return predicted_states(examples)
    if states == "random_coords":
        return random_coordinates(examples, seed=seed)
    return list(examples)


def predicted_states(examples: Sequence[SFTExample]) -> list[SFTExample]:
    """Restore in every response the states that the model itself wrote. The answer remains the
    corrected one.

    Raises DataError for an example without the model's states, such as an example of published
    data.
    """
    responses = []
    for example in examples:
        if example.observed is None or example.predicted is None:
            raise DataError(
                f"Episode {example.episode_id}, turn {example.turn}: the data lack the model's own "
                "predicted states; generate the data again with generate.states=model"
            )
        text = replace_state(example.response, "prediction", example.predicted)
        responses.append(replace_state(text, "observation", example.observed))
    return with_responses(examples, responses)


def random_coordinates(examples: Sequence[SFTExample], *, seed: int) -> list[SFTExample]:
    """Replace every coordinate `(r,c)` in the responses' state blocks by a random one, so that only
    the format is correct.

    Each number is sampled uniformly from the range of coordinates in the true states of the same
    tag. Grids, digits after coordinates (`(1,2)=4`) and words are kept. Raises DataError if a tag's
    states have no coordinates.
    """
    ranges = {
        tag: _range(tag, examples) for tag in dict.fromkeys(example.tag for example in examples)
    }
    responses = []
    for index, example in enumerate(examples):
        rng, (low, high) = stream(seed, "random_coordinates", index), ranges[example.tag]
        text = example.response
        for tag in ("observation", "prediction"):
            # Some response formats have no prediction.
            if tag == "observation" or find_block(example.response, tag) is not None:
                text = replace_state(text, tag, _scattered(block_of(example, tag), rng, low, high))
        responses.append(text)
    return with_responses(examples, responses)


def _range(tag: str, examples: Sequence[SFTExample]) -> tuple[int, int]:
    states = (
        text
        for example in examples
        if example.tag == tag
        for text in (example.state, example.next_state)
    )
    numbers = [int(number) for text in states for cell in _CELL.findall(text) for number in cell]
    if not numbers:
        raise DataError(
            f"{tag}: the states have no coordinates to randomize; set state_text to coords "
            "or grid_and_coords"
        )
    return min(numbers), max(numbers)


def _scattered(text: str, rng: np.random.Generator, low: int, high: int) -> str:
    return _CELL.sub(lambda _: "({},{})".format(*rng.integers(low, high + 1, size=2)), text)

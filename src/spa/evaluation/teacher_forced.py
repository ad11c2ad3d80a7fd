"""Teacher-forced accuracy: whether a model would write each part of an example, given the true text
before it."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from spa.formats.base import ResponseFormat
from spa.prompts.template import ChatTemplate
from spa.prompts.token_spans import token_bounds
from spa.types import Metrics
from spa.worldmodel.sequences import TrainingSequence


def teacher_forced_accuracy(
    is_right: np.ndarray,
    sequences: Sequence[TrainingSequence],
    form: ResponseFormat,
    template: ChatTemplate,
) -> Metrics:
    """The share of parts that are right, by the kinds of `form.parts`. A part is right if each of its
    tokens is the most likely one; a token belongs to the part that holds its last character.

    is_right: bool [B, A]; entry t is about token t + 1 of the sequence.
    """
    counts = Counter[str]()
    right = Counter[str]()
    for row, sequence in zip(is_right, sequences, strict=True):
        for begin, end in _responses(sequence.mask):
            ids = sequence.token_ids[begin:end]
            bounds = token_bounds(ids, template)
            hits = row[begin - 1 : end - 1]
            for kind, start, stop in form.parts(template.decode_response([*map(int, ids)])):
                inside = [start < last <= stop for _, last in bounds]
                if any(inside):
                    counts[kind] += 1
                    right[kind] += int(hits[inside].all())
    return {f"val/teacher_forced/{kind}": right[kind] / count for kind, count in counts.items()}


def _responses(mask: np.ndarray) -> list[tuple[int, int]]:
    """Begin and end of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(begin), int(end)) for begin, end in edges.reshape(-1, 2)]

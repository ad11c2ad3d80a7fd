"""Tokens that hold a piece of the text that they decode to.

A character may be several tokens (bytes). Until the last of them, it decodes to other characters,
and with some tokenizers (Gemma, Mistral) to more of them than it is. So lengths of decoded prefixes
do not grow steadily, but the part that they have in common with the whole text does.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate

import numpy as np

from spa.prompts.template import ChatTemplate


def token_bounds(ids: Sequence[int] | np.ndarray, template: ChatTemplate) -> list[tuple[int, int]]:
    """Of each token, (begin, end) in characters of the text that the ids decode to. All tokens of a
    character hold it."""
    ids = [int(token) for token in ids]
    text = template.decode_response(ids)
    parts = [template.token_text(token) for token in ids]
    # In the usual case, no token holds only a part of a character.
    if "".join(parts) == text:
        ends = list(accumulate(map(len, parts)))
        return list(zip([0, *ends], ends, strict=False))
    bounds = []
    whole = 0  # number of characters whose tokens have all been read
    for place in range(len(ids)):
        read = template.decode_response(ids[: place + 1])
        begin = whole
        whole = max(whole, _in_common(read, text))
        half = not text.startswith(read)  # whether the last character read is incomplete
        bounds.append((begin, min(whole + half, len(text))))
    return bounds


def _in_common(read: str, text: str) -> int:
    """Length of the common prefix in characters."""
    pairs = enumerate(zip(read, text, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(read), len(text)))


def tokens_touching(
    ids: Sequence[int] | np.ndarray, spans: Collection[tuple[int, int]], template: ChatTemplate
) -> list[bool]:
    """For each token, whether it touches one of the `spans`: (begin, end) in characters of the text
    that the ids decode to."""
    return [
        any(start < stop and end > begin for begin, stop in spans)
        for start, end in token_bounds(ids, template)
    ]

"""Map tokens to the spans of the decoded text that they cover.

A character may be split into several tokens (bytes). Without the last of these tokens, the others
decode to one replacement character or, with some tokenizers (Gemma, Mistral), to several. So adding
a token may make the decoded prefix shorter. But the part of the prefix that agrees with the whole
text never gets shorter.
"""

from collections.abc import Collection, Sequence
from itertools import accumulate

import numpy as np

from spa.prompts.template import ChatTemplate


def token_bounds(ids: Sequence[int] | np.ndarray, template: ChatTemplate) -> list[tuple[int, int]]:
    """Return, for each token, its (begin, end) in characters of the decoded text. Tokens that share
    a character all cover the whole character."""
    ids = [int(token) for token in ids]
    text = template.decode_response(ids)
    parts = [template.token_text(token) for token in ids]
    # Usually no character is split into several tokens.
    if "".join(parts) == text:
        ends = list(accumulate(map(len, parts)))
        return list(zip([0, *ends], ends, strict=False))
    bounds = []
    whole = 0  # number of characters whose tokens have all been read
    for place in range(len(ids)):
        read = template.decode_response(ids[: place + 1])
        begin = whole
        whole = max(whole, _in_common(read, text))
        half = not text.startswith(read)  # whether the tokens read so far end inside a character
        bounds.append((begin, min(whole + half, len(text))))
    return bounds


def _in_common(read: str, text: str) -> int:
    """Return the length of the common prefix in characters."""
    pairs = enumerate(zip(read, text, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(read), len(text)))


def tokens_touching(
    ids: Sequence[int] | np.ndarray, spans: Collection[tuple[int, int]], template: ChatTemplate
) -> list[bool]:
    """Return, for each token, whether it overlaps one of the `spans`, which are (begin, end) in
    characters of the decoded text."""
    return [
        any(start < stop and end > begin for begin, stop in spans)
        for start, end in token_bounds(ids, template)
    ]

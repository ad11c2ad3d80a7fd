"""Which tokens of an example touch a piece of its text."""

from collections.abc import Collection, Sequence

from spa.prompts.template import ChatTemplate


def tokens_touching(
    ids: Sequence[int], spans: Collection[tuple[int, int]], template: ChatTemplate
) -> list[bool]:
    """For each token, whether it touches one of the `spans`: (begin, end) in characters of the text
    that the ids decode to."""
    touching = []
    start = 0
    for place in range(len(ids)):
        end = len(template.decode_reply(list(ids[: place + 1])))
        touching.append(any(start < stop and end > begin for begin, stop in spans))
        start = end
    return touching

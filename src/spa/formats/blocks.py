"""Find the blocks of a response. All functions run in linear time: they use substring search, and
one regular expression whose repetition cannot match across tags."""

import re

TAGS = ("think", "observation", "prediction", "answer")
MARKERS = tuple(marker for tag in TAGS for marker in (f"<{tag}>", f"</{tag}>"))

# Matches "</think>\n<answer>", but not "</think> so <answer>" with text in between.
_ANSWER_NEXT = re.compile(r"</think>\s*<answer>")
_REMOVED = ("<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>")
"""Markers that the original removes from thoughts and answer in mode "base", in this order."""

Span = tuple[int, int]


def find_block(text: str, tag: str) -> Span | None:
    """Return the start and end of the content of `<tag>...</tag>`.

    None if one of the two tags is missing or occurs more than once, or if the closing tag comes
    first. Tags are case-sensitive.
    """
    opening = f"<{tag}>"
    closing = f"</{tag}>"
    # With two opening tags, it would be unclear which one a closing tag belongs to.
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    start = text.index(opening) + len(opening)
    end = text.index(closing)
    return (start, end) if start <= end else None


def between_states(text: str) -> Span | None:
    """Return the start and end of the text between a response's observation and prediction. None
    unless the response has both, in this order."""
    observation = find_block(text, "observation")
    prediction = find_block(text, "prediction")
    if observation is None or prediction is None or prediction[0] < observation[1]:
        return None
    return observation[1] + len("</observation>"), prediction[0] - len("<prediction>")


def contains_marker(text: str) -> bool:
    """Return whether the text contains an opening or closing tag of any block in `TAGS`."""
    return any(marker in text for marker in MARKERS)


def as_unicode(text: str) -> str:
    """Replace lone surrogates by U+FFFD, so that the text can be encoded as UTF-8."""
    # Encoding as UTF-16 accepts lone surrogates; decoding replaces them.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def after_prefill(text: str, prefill: str) -> str | None:
    """Return the text after `prefill` in the response of a model that was not given the prefill;
    None if the response does not contain it.

    A model may quote the prefill in its own reasoning. Therefore, the first prefill after a closed
    think block takes precedence over earlier ones.
    """
    reasoned = re.search(rf"</think>[^<]*{re.escape(prefill)}", text)
    if reasoned:
        return text[reasoned.end() :]
    _, found, after = text.partition(prefill)
    return after if found else None


def split_actions(answer: str, *, action_sep: str = "||", max_actions: int = 5) -> tuple[str, ...]:
    """Split an answer into at most `max_actions` actions. White space around actions is removed,
    and empty actions are dropped."""
    parts = answer.split(action_sep) if action_sep else [answer]
    actions = [part.strip() for part in parts]
    return tuple([action for action in actions if action][: max(max_actions, 0)])


def base_blocks(
    text: str, think: Span | None, enable_think: bool
) -> tuple[Span | None, Span | None]:
    """Return the think block and the answer block as the original's pattern captures them, or
    (`think`, None) if the pattern does not match.

    The pattern is `<think>(.*?)</think>\\s*<answer>(.*?)</answer>`, or `<answer>(.*?)</answer>`
    without thoughts, where a dot matches every character.
    """
    if not enable_think:
        # If the tag is missing, `find` returns -1, so `start` is less than the length of the tag.
        start = text.find("<answer>") + len("<answer>")
        end = text.find("</answer>", start) if start >= len("<answer>") else -1
        return think, (start, end) if end >= 0 else None
    thoughts = text.find("<think>")
    # Like the pattern's lazy `.*?`, end at the first `</think>` that is followed by an answer.
    between = _ANSWER_NEXT.search(text, thoughts + len("<think>")) if thoughts >= 0 else None
    end = text.find("</answer>", between.end()) if between else -1
    if between is None or end < 0:
        return think, None
    return (thoughts + len("<think>"), between.start()), (between.end(), end)


def without_markers(text: str) -> str:
    """Remove the markers that the original removes, and surrounding white space."""
    for marker in _REMOVED:
        text = text.replace(marker, "").strip()
    return text


def leaf(text: str, tag: str) -> Span | None:
    """Call `find_block`, but return None if the block contains a tag of any block."""
    span = find_block(text, tag)
    return None if span is None or contains_marker(cut(text, span)) else span


def cut(text: str, span: Span) -> str:
    """Return the part of `text` in `span`."""
    return text[span[0] : span[1]]


def blank_between(text: str, before: int, marker: str, after: int, next_marker: str) -> bool:
    """Return whether only white space lies between `marker`, which starts at index `before`, and
    `next_marker`, which ends at index `after`."""
    start = before + len(marker)
    end = after - len(next_marker)
    return start <= end and not text[start:end].strip()


def thinks_first(text: str, think: Span | None, answer: Span | None) -> bool:
    """Return whether only white space is between the think block and the answer after it."""
    if think is None or answer is None:
        return False
    return blank_between(text, think[1], "</think>", answer[0], "<answer>")


def states_inside(
    text: str, think: Span | None, observation: Span | None, prediction: Span | None
) -> bool:
    """Return whether the think block begins with the observation and ends with the prediction."""
    if think is None or observation is None or prediction is None:
        return False
    opens = blank_between(text, think[0], "", observation[0], "<observation>")
    closes = blank_between(text, prediction[1], "</prediction>", think[1], "")
    return opens and observation[1] < prediction[0] and closes


def observes_first(text: str, think: Span | None, observation: Span | None) -> bool:
    """Return whether the think block begins with the observation."""
    if think is None or observation is None:
        return False
    inside = observation[1] + len("</observation>") <= think[1]
    return inside and blank_between(text, think[0], "", observation[0], "<observation>")


def thoughts_of(text: str, think: Span, *states: Span | None) -> str:
    """Return the text of the think block without the state blocks inside it. `states` are the spans
    of the observation and the prediction."""
    start, end = think
    pieces = []
    # Blocks are removed in the order of the text. A missing block sorts first.
    for tag, span in sorted(
        zip(("observation", "prediction"), states, strict=True), key=lambda item: item[1] or ()
    ):
        if span is None:
            continue
        opening = span[0] - len(f"<{tag}>")
        closing = span[1] + len(f"</{tag}>")
        # A prediction after the answer is not part of the thoughts.
        if start <= opening and closing <= end:
            pieces.append(text[start:opening].strip())
            start = closing
    pieces.append(text[start:end].strip())
    return "\n".join(piece for piece in pieces if piece)


def replace_block(text: str, tag: str, content: str) -> str:
    """Replace the content of the only `<tag>` block. The text is returned unchanged unless there is
    exactly one."""
    span = find_block(text, tag)
    return text if span is None else text[: span[0]] + content + text[span[1] :]


def replace_state(text: str, tag: str, state: str) -> str:
    """Replace the state in the only `<tag>` block. The state gets its own lines, as in all training
    data."""
    return replace_block(text, tag, f"\n{state}\n")


def think_text(response: str) -> tuple[str, bool]:
    """Return the text of a response's think block, and whether the block was closed."""
    inside, closed, _ = response.removeprefix("<think>").partition("</think>")
    return inside, bool(closed)

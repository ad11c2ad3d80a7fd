"""From a response's text to its parts, in linear time: substring search, and one pattern whose
blanks cannot overlap."""

import re

from spa.prompts.formats import FORMATS, FormatSpec
from spa.prompts.imagined import Option, read_options
from spa.types import ParsedReply, ResponseFormat

TAGS = ("think", "observation", "prediction", "answer")
MARKERS = tuple(marker for tag in TAGS for marker in (f"<{tag}>", f"</{tag}>"))
MODES = ("base", "add_worldmodel")
ORDERS = tuple(FORMATS)

# Matches "</think>\n<answer>", but not "</think> so <answer>" with text in between.
_ANSWER_NEXT = re.compile(r"</think>\s*<answer>")
_REMOVED = ("<think>", "</think>", "<answer>", "</answer>", "<|im_start|>", "<|im_end|>")
"""What the original takes out of the thoughts and the answer in mode "base", in this order."""

Span = tuple[int, int]


def find_block(text: str, tag: str) -> Span | None:
    """Start and end of the content of `<tag>...</tag>` if `text` holds the tag once and then its
    end once.

    None if the block is missing, repeated, nested in its own kind, or unclosed. Tags are
    case-sensitive.
    """
    opening = f"<{tag}>"
    closing = f"</{tag}>"
    # With two openings, it is unclear to which of them a closing belongs.
    if text.count(opening) != 1 or text.count(closing) != 1:
        return None
    start = text.index(opening) + len(opening)
    end = text.index(closing)
    return (start, end) if start <= end else None


def between_states(text: str) -> Span | None:
    """Start and end of what is between a response's observation and prediction; None if it
    does not have both in this order."""
    observation = find_block(text, "observation")
    prediction = find_block(text, "prediction")
    if observation is None or prediction is None or prediction[0] < observation[1]:
        return None
    return observation[1] + len("</observation>"), prediction[0] - len("<prediction>")


def contains_marker(text: str) -> bool:
    """Whether the text holds an opening or closing marker of any block of the response format."""
    return any(marker in text for marker in MARKERS)


def as_unicode(text: str) -> str:
    """`text` as UTF-8 can hold it, to be sent on and kept: lone surrogates become U+FFFD."""
    # Encoding as UTF-16 accepts lone surrogates; decoding replaces them.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def after_prefill(text: str, prefill: str) -> str | None:
    """What follows `prefill` in a response of a model that did not get it, or None if the response
    lacks it. Text before it is left out, as is a think block that the model closed before it: its
    own reasoning, which may quote the format."""
    reasoned = re.search(rf"</think>[^<]*{re.escape(prefill)}", text)
    if reasoned:
        return text[reasoned.end() :]
    _, found, after = text.partition(prefill)
    return after if found else None


def split_actions(answer: str, *, action_sep: str = "||", max_actions: int = 5) -> tuple[str, ...]:
    """The actions of an answer: split at the separator, trimmed, empty ones dropped, the first
    `max_actions` kept."""
    parts = answer.split(action_sep) if action_sep else [answer]
    actions = [part.strip() for part in parts]
    return tuple([action for action in actions if action][: max(max_actions, 0)])


def parse_reply(
    text: str,
    *,
    mode: str,
    enable_think: bool = True,
    action_sep: str = "||",
    max_actions: int = 5,
    order: ResponseFormat = "prediction_first",
) -> ParsedReply:
    """Take a response (prefill included) apart. Never raises, whatever the text is.

    Mode "base" asks for `<think>..</think><answer>..</answer>` and reads it as the original does.
    It takes the first think block that only white space separates from an answer block, whatever
    is around it. Tags of these two blocks and chat markers inside them are removed. A response
    without this pattern has no actions. `enable_think=False` asks for the answer block alone, of
    which the first is read, in mode "base" only: the states have to be somewhere.

    Mode "add_worldmodel" asks for the same with `<observation>..</observation> thoughts
    <prediction>..</prediction>` inside the think block. Each block is there once; only white space
    is between blocks, except for the thoughts; text before the first and after the last block is
    tolerated. Observation, prediction and answer hold no tags of the format. With `order`
    "answer_first" the prediction follows the answer; "no_prediction" has none;
    "plan_first" has the places of "prediction_first", and its thoughts end with the plan. In
    "choose_plan" the thoughts list plans with their predicted states (`spa.prompts.imagined`), and
    the answer is one of these plans.

    If the format of "add_worldmodel" is broken but one answer block can be read, its actions count
    and `well_formed` is False. `think` is the thoughts: the think block without the two state
    blocks.

    Raises ValueError for a mode or an order that does not exist.
    """
    if mode not in MODES:
        raise ValueError(f"The prompt mode must be one of {MODES}, got {mode!r}")
    if order not in ORDERS:
        raise ValueError(f"The response format must be one of {ORDERS}, got {order!r}")
    spec = FORMATS[order]
    think = find_block(text, "think")
    # `_leaf` refuses tags inside these blocks: a tag in a state would move the borders of others.
    observation, prediction, answer = (
        _leaf(text, tag) for tag in ("observation", "prediction", "answer")
    )
    answer_text = "" if answer is None else _cut(text, answer)
    if mode == "base":
        think, answer = _base_blocks(text, think, enable_think)
        answer_text = "" if answer is None else _without_markers(_cut(text, answer))
    actions = split_actions(answer_text, action_sep=action_sep, max_actions=max_actions)
    in_order = True
    if mode == "add_worldmodel":
        in_order = _thinks_first(text, think, answer) and (
            _states_inside(text, think, observation, prediction)
            if spec.prediction == "in_think"
            else _observes_first(text, think, observation)
            and _ends_with(text, answer, prediction, spec)
        )
    options: tuple[Option, ...] = ()
    if mode == "add_worldmodel" and spec.lists_plans and in_order and observation and prediction:
        options = read_options(
            text[observation[1] + len("</observation>") : prediction[0] - len("<prediction>")]
        )
        # A plan without a predicted state is no option, so it cannot be the answer either.
        in_order = any(plan == actions for plan, _ in options)
    thoughts = None if think is None else _thoughts(text, think, observation, prediction)
    if mode == "base" and thoughts and answer:
        thoughts = _without_markers(thoughts)
    return ParsedReply(
        options=options,
        think=thoughts,
        observation=None if observation is None else _cut(text, observation).strip(),
        prediction=None if prediction is None else _cut(text, prediction).strip(),
        actions=actions,
        well_formed=bool(actions) and in_order,
    )


def _base_blocks(
    text: str, think: Span | None, enable_think: bool
) -> tuple[Span | None, Span | None]:
    """Think and answer block as the original's pattern captures them; (`think`, None) if it does not match.

    `<think>(.*?)</think>\\s*<answer>(.*?)</answer>`, or `<answer>(.*?)</answer>` without thoughts, where a dot matches
    every character.
    """
    if not enable_think:
        # `find` returns -1 for a missing tag, which leaves `start` below the tag's own length.
        start = text.find("<answer>") + len("<answer>")
        end = text.find("</answer>", start) if start >= len("<answer>") else -1
        return think, (start, end) if end >= 0 else None
    thoughts = text.find("<think>")
    # A lazy `.*?` ends at the first `</think>` that an answer follows.
    between = _ANSWER_NEXT.search(text, thoughts + len("<think>")) if thoughts >= 0 else None
    end = text.find("</answer>", between.end()) if between else -1
    if between is None or end < 0:
        return think, None
    return (thoughts + len("<think>"), between.start()), (between.end(), end)


def _without_markers(text: str) -> str:
    for marker in _REMOVED:
        text = text.replace(marker, "").strip()
    return text


def _leaf(text: str, tag: str) -> Span | None:
    """Like `find_block`, and None if another tag of the format is inside."""
    span = find_block(text, tag)
    return None if span is None or contains_marker(_cut(text, span)) else span


def _cut(text: str, span: Span) -> str:
    return text[span[0] : span[1]]


def _blank_between(text: str, before: int, marker: str, after: int, next_marker: str) -> bool:
    """Whether `marker` starts at `before`, `next_marker` ends at `after`, and only white space lies
    in between."""
    start = before + len(marker)
    end = after - len(next_marker)
    return start <= end and not text[start:end].strip()


def _thinks_first(text: str, think: Span | None, answer: Span | None) -> bool:
    if think is None or answer is None:
        return False
    return _blank_between(text, think[1], "</think>", answer[0], "<answer>")


def _states_inside(
    text: str, think: Span | None, observation: Span | None, prediction: Span | None
) -> bool:
    if think is None or observation is None or prediction is None:
        return False
    opens = _blank_between(text, think[0], "", observation[0], "<observation>")
    closes = _blank_between(text, prediction[1], "</prediction>", think[1], "")
    return opens and observation[1] < prediction[0] and closes


def _observes_first(text: str, think: Span | None, observation: Span | None) -> bool:
    if think is None or observation is None:
        return False
    inside = observation[1] + len("</observation>") <= think[1]
    return inside and _blank_between(text, think[0], "", observation[0], "<observation>")


def _ends_with(text: str, answer: Span | None, prediction: Span | None, spec: FormatSpec) -> bool:
    if not spec.predicts:
        return "<prediction>" not in text and "</prediction>" not in text
    if answer is None or prediction is None:
        return False
    return _blank_between(text, answer[1], "</answer>", prediction[0], "<prediction>")


def _thoughts(text: str, think: Span, *states: Span | None) -> str:
    """The think block's text with the state blocks that lie inside it cut out."""
    start, end = think
    pieces = []
    # The blocks are cut out in the order of the text; None sorts first.
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

"""A chat template's episodes token for token: what is appended turn by turn against the rendering
of the whole."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import product

from spa.errors import ModelError
from spa.prompts.template import ChatTemplate
from spa.prompts.template_parts import CONVERSATIONS, SYSTEM_TURN, alternate, renderer
from spa.types import Message

PREFILLS = ("<think>", "<answer>")
_LONGEST = 4000  # number of tokens that are compared


def check_tokens(template: ChatTemplate) -> None:
    """Compare conversations of several turns token by token.

    Where a response is sampled, tokens begin from scratch: a server that reads the conversation as
    text may join the last character of the prefill with the first of the response. Any other
    difference raises ModelError.
    """
    leads: list[list[Message]] = [[SYSTEM_TURN], []]
    for lead, (users, responses) in product(leads, CONVERSATIONS):
        if not lead and template.parts.user_open is None:
            continue
        messages = [*lead, *alternate(users, responses)]
        ours, borders = appended(template, messages)
        served = served_ids(template, messages)
        joined_borders(ours, served, borders)


def prefill_of(messages: Sequence[Message]) -> str:
    """Common beginning of the responses of a conversation."""
    responses = [message["content"] for message in messages if message["role"] == "assistant"]
    return next(
        (
            prefill
            for prefill in PREFILLS
            if all(response.startswith(prefill) for response in responses)
        ),
        "",
    )


def appended(template: ChatTemplate, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
    """The ids of a conversation that ends with a user message as an episode has them, up to the
    next response's prefill; and the places where responses begin and end."""
    prefill = prefill_of(messages)
    head = 2 if messages[0]["role"] == "system" else 1
    ids = template.start(tuple(messages[:head]), prefill)
    borders = []
    for response, user in zip(messages[head::2], messages[head + 1 :: 2], strict=True):
        said = template.response_ids(response["content"], prefill)
        # A server's tokens may differ only where a response begins or ends.
        borders += [len(ids), len(ids) + len(said) - len(template.end_ids)]
        ids += said
        ids += template.follow(user["content"], prefill, response=said)
    return ids, [*borders, len(ids)]


def served_ids(template: ChatTemplate, messages: Sequence[Message]) -> list[int]:
    """The ids of the same conversation as a server makes them: rendered as a whole, then read as
    one text."""
    text = renderer(template.tokenizer, template.tokenizer.get_chat_template())(messages)
    return template.encode(text + prefill_of(messages))


def joined_borders(ours: list[int], served: list[int], borders: Sequence[int]) -> int:
    """Count the positions that differ, all of them at borders. Raises ModelError if there are
    others."""
    if ours == served:
        return 0
    # The comparison below is quadratic in the length.
    if max(len(ours), len(served)) > _LONGEST:
        ours = ours[:_LONGEST]
        served = served[:_LONGEST]
    places = [
        item
        for item in SequenceMatcher(None, ours, served, autojunk=False).get_opcodes()
        if item[0] != "equal"
    ]
    for _, start, stop, served_start, served_stop in places:
        if not any(start <= border <= stop for border in borders):
            raise ModelError(
                "The tokenizer splits a whole conversation differently from its separate "
                f"turns (ids {served[served_start:served_stop]} instead of "
                f"{ours[start:stop]}). Inference servers could not reproduce the trained "
                "tokens. Use another model."
            )
    return len(places)

"""Is a model trained on what it will be served? A template is compared with its own parts, and
pinned if need be.

Episodes are only ever appended to. A server renders the whole conversation for every turn. Both are
the same text for some templates; others cut thoughts or white space from history, number the
rounds, move the system message or write the date. Those are replaced by a template that writes what
was trained, which every checkpoint holds.
"""

from collections.abc import Callable, Sequence
from itertools import product

from spa.errors import ModelError, one_line
from spa.prompts.template_parts import (
    Parts,
    Render,
    pinned_template,
    take_apart,
    written,
)
from spa.types import Message

SYSTEM_TURN: Message = {"role": "system", "content": "You play a game."}
"""The system turn of the compared conversations, which come with and without it."""
_RESPONSE = "<think>plan {}</think><answer>Left || Up</answer>"
CONVERSATIONS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    # (user messages, responses); each is compared up to the last user message
    (("Rules.",), ()),
    (tuple(f"Turn {i}." for i in range(12)), tuple(_RESPONSE.format(i) for i in range(11))),
    (("Rules.", "Turn 2."), (f"<think><observation>\n_P\n</observation>{_RESPONSE[7:]}",)),
    (("  Rules.\n", "\n\n Turn\t2. \n", " \t", ""), ("<think>x", "<think>x</think>", "<think>")),
    (("Rules.", "Turn 2.", "Turn 3."), ("<think>x</think>\n<answer>Up</answer> \n", "<think>\n\n")),
)
"""Plain ones, and some with white space, unfinished blocks and empty turns."""


def examine(
    template: str,
    render_with: Callable[[str], Render],
    *,
    end_of: Callable[[Parts], Parts],
    image_text: str = "",
) -> tuple[str, Parts, str]:
    """The template that a model is to be trained and served with, its parts, and why it is not the
    model's own: "" if it is.

    render_with: gives a template's rendering. end_of: fills in how a response ends, which only the
    tokenizer knows.

    Raises ModelError if no conversation can be rendered, if the template loses messages, or if what
    it does cannot be written as a template that only appends.
    """
    parts = end_of(take_apart(render_with(template)))
    # A server would write the date of the day, training writes a fixed one.
    if "strftime_now" in template:
        reason = "the template writes the current date"
    elif parts.system_open is None:
        reason = "the template refuses a system message"
    else:
        reason = difference(render_with(template), parts)
    if not reason:
        return template, parts, ""
    pinned = pinned_template(parts, image_text)
    # The replacement has to pass the same comparison.
    if left := difference(render_with(pinned), parts):
        raise ModelError(
            "The chat template is not append-only, and spa found no equivalent append-only "
            f"template ({left}). Name another template in "
            "actor_rollout_ref.model.chat_template."
        )
    return pinned, end_of(take_apart(render_with(pinned))), reason


def difference(render: Render, parts: Parts) -> str:
    """The first difference between whole conversations as rendered and what `parts` append turn by
    turn, or ""."""
    # Templates that require a system message are compared only with one.
    leads: list[list[Message]] = [[SYSTEM_TURN]] if parts.user_open is None else [[SYSTEM_TURN], []]
    for lead, (users, responses) in product(leads, CONVERSATIONS):
        messages = [*lead, *alternate(users, responses)]
        trained = written(parts, messages)
        try:
            served = render(messages)
        except ModelError as error:
            return f"the template does not render every conversation: {one_line(error.__cause__ or error)}"
        if served != trained:
            return _first_difference(served, trained)
    return ""


def alternate(users: Sequence[str], responses: Sequence[str]) -> list[Message]:
    """User messages and responses in turn."""
    talk: list[Message] = [{"role": "user", "content": users[0]}]
    for response, user in zip(responses, users[1:], strict=True):
        talk += [{"role": "assistant", "content": response}, {"role": "user", "content": user}]
    return talk


def _first_difference(served: str, trained: str) -> str:
    pairs = enumerate(zip(served, trained, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(served), len(trained)))
    start = max(0, at - 8)
    return (
        f"the template renders {served[start : at + 40]!r} where training uses "
        f"{trained[start : at + 40]!r}"
    )

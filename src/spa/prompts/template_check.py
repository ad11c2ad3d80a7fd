"""Is a model trained on what it will be served? A template is compared with its own parts, and
pinned if need be.

Episodes are only ever appended to. A server renders the whole conversation for every turn. Both are
the same text for some templates; others cut thoughts or white space from history, number the
rounds, move the system message or write the date. Those are replaced by a template that writes what
was trained, which every checkpoint holds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from spa.errors import ModelError
from spa.prompts.template_parts import (
    Parts,
    Render,
    pinned_template,
    take_apart,
    without_system,
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


@dataclass(frozen=True, slots=True)
class TemplateReport:
    """Whether a chat template was replaced by a pinned one, and why; "" if it is used as it is."""

    reason: str = ""

    @property
    def pinned(self) -> bool:
        """Whether another template took its place."""
        return bool(self.reason)

    def __str__(self) -> str:
        return (
            f"replaced by a pinned template, which every checkpoint holds: {self.reason}"
            if self.pinned
            else "exact"
        )


def examine(
    template: str,
    render_with: Callable[[str], Render],
    *,
    end_of: Callable[[Parts], Parts],
    image_text: str = "",
) -> tuple[str, Parts, TemplateReport]:
    """The template that a model is to be trained and served with, its parts, and whether it is the
    model's own.

    render_with: gives a template's rendering. end_of: fills in how a response ends, which only the
    tokenizer knows.

    Raises ModelError if no conversation can be rendered, if the template loses messages, or if what
    it does cannot be written as a template that only appends.
    """
    own = take_apart(render_with(template))
    parts = end_of(own)
    reason = _needs_pinning(template, own, parts) or difference(
        render_with(template), parts, own=own
    )
    if not reason:
        return template, parts, TemplateReport()
    pinned = pinned_template(parts, image_text)
    # The replacement has to pass the same comparison.
    again = take_apart(render_with(pinned))
    if left := difference(render_with(pinned), parts, own=again):
        raise ModelError(
            f"the chat template is not append-only, and no equivalent append-only template was found ({left}). Give "
            "another one in actor_rollout_ref.model.chat_template."
        )
    return pinned, end_of(again), TemplateReport(reason)


def _needs_pinning(template: str, own: Parts, parts: Parts) -> str:
    """Why a template cannot be used as it is, whatever its conversations are; "" if it can."""
    # A server would write the date of the day, training writes a fixed one.
    if "strftime_now" in template:
        return "it writes the date"
    if own.system_open is None:
        return "it refuses a system turn"
    if own.generation != own.after_user:
        return "it opens responses in its own way"
    return "it does not end responses" if parts.after_reply != own.after_reply else ""


def difference(render: Render, parts: Parts, *, own: Parts) -> str:
    """The first difference between whole conversations as rendered and what `parts` append turn by
    turn, or "".

    `own`: what the rendered template itself writes: its generation prompt is replaced by
    what responses begin after, and it is not asked for a system turn that it refuses.
    """
    leads: list[list[Message]] = [[SYSTEM_TURN]] if own.user_open is None else [[SYSTEM_TURN], []]
    for lead, (users, responses) in product(leads, CONVERSATIONS):
        messages = [*lead, *alternate(users, responses)]
        trained = written(parts, messages)
        try:
            asked = messages if own.system_open is not None else without_system(messages)
            served = render(asked).removesuffix(own.generation) + parts.after_user
        except ModelError as error:
            return str(error)
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
    return f"served {served[start : at + 40]!r}, trained {trained[start : at + 40]!r}"

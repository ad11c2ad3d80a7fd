"""Is a model trained on what it will be served? A chat template is replayed, classified, and pinned where it must be.

Episodes are only ever appended to. A server renders the whole conversation anew for every turn. Both are the same text
for some templates; others cut thoughts or white space from what was said, number the rounds, move the system message
or write the date. Those are replaced by a template that writes what was trained, and that is saved with the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal

from spa.errors import ModelError
from spa.prompts.template_parts import (
    DATE,
    Parts,
    Render,
    frozen_date,
    pinned_template,
    take_apart,
    without_system,
    written,
)
from spa.types import Message

Kind = Literal["exact", "exact but for what the template drops from history", "not append-only"]

EXACT: Kind = "exact"
DROPS: Kind = "exact but for what the template drops from history"
REWRITES: Kind = "not append-only"
_SHOWN = 40  # characters of a difference

SYSTEM_TURN: Message = {"role": "system", "content": "You play a game."}
"""The system turn of the replayed conversations, which come with and without it."""
_SAID = "<think>plan {}</think><answer>Left || Up</answer>"
_LONG = "A very long turn, word by word. " * 60
CONVERSATIONS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    # (user messages, replies); each is replayed up to the last user message
    (("Rules.",), ()),
    (("Rules.", "Turn 2.", "Turn 3."), (_SAID.format(1), _SAID.format(2))),
    (tuple(f"Turn {i}." for i in range(12)), tuple(_SAID.format(i) for i in range(11))),
    (("Rules.", "Turn 2."), ("<answer>Left</answer>",)),
    (("Rules.", "Turn 2."), (f"<think><observation>\n_P\n</observation>{_SAID[7:]}",)),
    (("  Rules.\n", "\n\n Turn\t2. \n", " \t", ""), ("<think>x", "<think>x</think>", "<think>")),
    (("Rules.", "Turn 2.", "Turn 3."), ("<think>x</think>\n<answer>Up</answer> \n", "<think>\n\n")),
    (("Rules.", _LONG, "Turn 3."), (_SAID.format(_LONG), _SAID.format(2))),
)
"""User messages and replies, with hostile white space, empty and very long turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateReport:
    """What a chat template is like, and whether it is used as it is.

    kind: whether a server's rendering is the text that was trained. traits: what else is to be known. difference: the
    first one that was found, "" if there is none. pinned: whether another template took its place. date: what dates
    were fixed to, "" if the template writes none. joined: places in the replayed conversations where a server that
    reads text joins tokens at the border of a reply, where sampling begins anew.
    """

    kind: Kind
    traits: tuple[str, ...] = ()
    difference: str = ""
    pinned: bool = False
    date: str = ""
    joined: int = 0

    def __str__(self) -> str:
        text = "; ".join((self.kind, *self.traits))
        return text + ("; replaced by a pinned template, which every checkpoint holds" if self.pinned else "")

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"traits": list(self.traits)}


def examine(
    template: str, render_with: Callable[[str], Render], *, end_of: Callable[[Parts], Parts], image_text: str = ""
) -> tuple[str, Parts, TemplateReport]:
    """The template that a model is to be trained and served with, its parts, and what was found.

    render_with: gives a template's rendering. end_of: fills in how a reply ends, which is the tokenizer's to say.

    Raises ModelError if no conversation can be rendered, if the template loses messages, or if what it does cannot be
    written as a template that only appends.
    """
    dated = frozen_date(template, render_with)
    effective = template if dated is None else dated
    own = take_apart(render_with(effective))
    parts = end_of(own)
    kind, difference = compare(render_with(effective), parts, own=own)
    traits, must = _traits(own, parts)
    date = ""
    if dated is not None:
        date = DATE.strftime("%Y-%m-%d")
        traits = (f"changes with the date, which is fixed to {date}", *traits)
    if kind == EXACT and not must:
        return effective, parts, TemplateReport(kind=kind, traits=traits, pinned=dated is not None, date=date)
    pinned = pinned_template(parts, image_text)
    again = take_apart(render_with(pinned))
    left, example = compare(render_with(pinned), parts, own=again)
    if left != EXACT:
        raise ModelError(
            "the chat template is not append-only, and its texts cannot be written as one that is "
            f"({example}). Give another one in actor_rollout_ref.model.chat_template."
        )
    report = TemplateReport(kind=kind, traits=traits, difference=difference, pinned=True, date=date)
    return pinned, end_of(again), report


def _traits(own: Parts, parts: Parts) -> tuple[tuple[str, ...], bool]:
    """What else is to be known of a template, and whether any of it asks for another template."""
    forbids, needs = own.system_open is None, own.user_open is None
    before, after, plain = own.system_open or "", own.system_user or "", own.user_open or ""
    defaults = not forbids and len(plain) > len(before + after) and plain.startswith(before) and plain.endswith(after)
    forced = own.generation != own.after_user
    endless = parts.after_reply != own.after_reply
    traits = {
        "forbids a system turn": forbids,
        "needs a system turn": needs,
        "writes a system turn of its own where there is none": defaults,
        "opens replies in its own way": forced,
        "does not end replies": endless,
    }
    return tuple(name for name, is_so in traits.items() if is_so), forbids or forced or endless


def compare(render: Render, parts: Parts, *, own: Parts) -> tuple[Kind, str]:
    """How the rendering of whole conversations differs from what `parts` append turn by turn, and the first difference.

    `own`: what the rendered template itself writes: in the place of its generation prompt stands what replies begin
    after, and it is not asked for a system turn that it refuses.
    """
    kind, difference = EXACT, ""
    leads: list[list[Message]] = [[SYSTEM_TURN]] if own.user_open is None else [[SYSTEM_TURN], []]
    for lead, (users, replies) in product(leads, CONVERSATIONS):
        messages = [*lead, *alternate(users, replies)]
        ours = written(parts, messages)
        try:
            asked = messages if own.system_open is not None else without_system(messages)
            served = render(asked).removesuffix(own.generation) + parts.after_user
        except ModelError as error:
            return REWRITES, str(error)
        if served == ours:
            continue
        difference = difference or _first_difference(served, ours)
        if not _is_subsequence(served, ours):
            return REWRITES, _first_difference(served, ours)
        kind = DROPS
    return kind, difference


def alternate(users: Sequence[str], replies: Sequence[str]) -> list[Message]:
    """User messages and replies in turn."""
    talk: list[Message] = [{"role": "user", "content": users[0]}]
    for reply, user in zip(replies, users[1:], strict=True):
        talk += [{"role": "assistant", "content": reply}, {"role": "user", "content": user}]
    return talk


def _is_subsequence(short: str, long: str) -> bool:
    rest = iter(long)
    return all(character in rest for character in short)


def _first_difference(served: str, ours: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(served, ours, strict=False)) if a != b), min(len(served), len(ours)))
    start = max(0, at - 8)
    return f"served {served[start : at + _SHOWN]!r}, trained {ours[start : at + _SHOWN]!r}"

"""Render a chat template, split it into the texts around messages, and replace it if it is not
append-only.

Templates are third-party code: transformers renders them in its sandbox, and any error becomes a
ModelError.

Episodes are append-only, while a server renders the whole conversation for every turn. With some
templates both give the same text. Others remove thoughts or white space from the history, number
the turns, move the system message or write the date. Training and serving would then differ. Such a
template is replaced (pinned) by one that writes exactly the text used in training. Every checkpoint
contains the replacement.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any

from transformers.utils.chat_template_utils import _compile_jinja_template

from spa.errors import ModelError, one_line
from spa.types import Message

Render = Callable[..., str]
"""render(messages, generation=True) -> text, with or without the generation prompt. Raises
ModelError if the template fails."""

DATE = datetime(2024, 7, 26)
"""The date for templates that use one. It is fixed, so that prompts never change, for example after
a resume."""

FIRST = "FIRSTPLACEHOLDER"
RESPONSE = "REPLYPLACEHOLDER"
USER = "USERPLACEHOLDER"
SYSTEM = "SYSTEMPLACEHOLDER"
JOINT = "\n\n"
"""Separator between a system message and the first user message, if the template has no system
role."""

# Matches an empty think block at the end of a text, or one of its tags alone.
_THINK = re.compile(r"(<think>\s*)?(</think>\s*)?$")


class TemplateFault(ModelError):
    """A chat template does not parse or raises an error. In a rollout, only the episode fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The texts that a template writes around messages."""

    # Before a system message, and between it and the first user message. Both are None if the
    # template refuses a system message.
    system_open: str | None
    system_user: str | None
    # before a first user message without a system message; None if the template requires a system
    # message
    user_open: str | None
    user_end: str  # after the last user message, without a generation prompt
    after_user: str  # from the end of a user message to the beginning of the response
    after_response: str  # from the end of a response to the next user message
    end: str = ""  # the part of `after_response` that ends the response
    # whether the template strips white space on the left and right of user messages
    trims: tuple[bool, bool] = (False, False)
    # the same for a user message after a system message
    trims_first: tuple[bool, bool] = (False, False)

    @property
    def plain_open(self) -> str:
        """Text before a first user message without a system message. It contains an empty system
        message if the template requires one."""
        return (
            self.user_open
            if self.user_open is not None
            else f"{self.system_open}{self.system_user}"
        )

    def texts(self) -> list[str]:
        """Return all texts that the template writes around messages."""
        parts = (getattr(self, name) for name in self.__slots__)
        return [text for text in parts if isinstance(text, str)]

    def trimmed(self, text: str, *, first: bool = False) -> str:
        """Return a user message as the template writes it. `first` is True if the message follows a
        system message."""
        left, right = self.trims_first if first else self.trims
        text = text.lstrip() if left else text
        return text.rstrip() if right else text


def read_template(tokenizer: Any) -> str:
    """Return the text of a tokenizer's chat template. Raises ModelError if there is none, or
    several without a default."""
    name = getattr(tokenizer, "name_or_path", "this model")
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            f"The tokenizer of {name!r} has no chat template. Use an instruct model, or set "
            "actor_rollout_ref.model.chat_template to a file with a Jinja chat template."
        )
    try:
        text = tokenizer.get_chat_template()
    except ValueError as error:
        raise ModelError(
            f"The tokenizer of {name!r} has several chat templates, but no default. Set "
            "actor_rollout_ref.model.chat_template to a file with one of them"
        ) from error
    return text


def renderer(tokenizer: Any, template: str) -> Render:
    """Return a function that renders conversations as a server does for a plain request without
    tools or documents."""

    def render(messages: Sequence[Message], generation: bool = True) -> str:
        try:
            return _compile_jinja_template(template).render(
                # Pass copies, because a template is code that could change its inputs.
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=generation,
                strftime_now=DATE.strftime,
                **tokenizer.special_tokens_map,
            )
        except Exception as error:  # a template is foreign code and may raise anything
            what = one_line(error) or type(error).__name__
            raise TemplateFault(
                f"The chat template cannot be rendered: {what[:300]}. Name another template "
                "in actor_rollout_ref.model.chat_template."
            ) from error

    return render


def take_apart(render: Render) -> Parts:
    """Find the texts around messages by rendering short conversations with placeholders.

    Raises ModelError if the template refuses a conversation of several turns, or drops or reorders
    messages.
    """
    system_open, system_user = _find_system(render)
    lead: list[Message] = []
    user_open = None
    # Some templates refuse a conversation without a system message, others a conversation with one.
    try:
        user_open = render(_alternating(FIRST)).partition(FIRST)[0]
    except ModelError:
        if system_open is None:
            raise
        lead = [{"role": "system", "content": SYSTEM}]
    probe = render([*lead, *_alternating(FIRST, RESPONSE, USER)])
    _, found_first, rest = probe.partition(FIRST)
    header, found_response, rest = rest.partition(RESPONSE)
    after_response, found_user, generation = rest.partition(USER)
    if not (found_first and found_response and found_user):
        raise ModelError(
            "The chat template drops or reorders messages, so multi-turn episodes cannot "
            "use it. Name another template in actor_rollout_ref.model.chat_template."
        )
    # The header of a finished response may be longer than the generation prompt. Then the template
    # has no generation prompt, or the model itself writes the rest of the header, such as the name
    # of a channel. Responses begin after the whole header.
    prompt = _THINK.sub("", generation)
    after_user = _THINK.sub("", header) if header.startswith(prompt) else prompt
    user_end = render([*lead, *_alternating(FIRST, RESPONSE, USER)], generation=False).partition(
        USER
    )[2]
    # The tabs show whether the template strips white space on the left or right of user messages.
    padded = f"\t{USER}\t"
    trims = _trims(render([*lead, *_alternating(FIRST, RESPONSE, padded)]))
    behind = (
        trims
        if system_open is None
        else _trims(render([{"role": "system", "content": SYSTEM}, *_alternating(padded)]))
    )
    return Parts(
        system_open=system_open,
        system_user=system_user,
        user_open=user_open,
        user_end=user_end if after_user.startswith(user_end) else "",
        after_user=after_user,
        after_response=after_response,
        trims=trims,
        trims_first=behind,
    )


def _trims(text: str) -> tuple[bool, bool]:
    return f"\t{USER}" not in text, f"{USER}\t" not in text


def _find_system(render: Render) -> tuple[str | None, str | None]:
    try:
        text = render([{"role": "system", "content": SYSTEM}, *_alternating(USER)])
    except ModelError:
        return None, None
    before, marker, rest = text.partition(SYSTEM)
    between, then, _ = rest.partition(USER)
    return (before, between) if marker and then else (None, None)


def _alternating(*texts: str) -> list[Message]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def without_system(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the system text prepended to the first user message."""
    if len(messages) < 2 or messages[0]["role"] != "system":
        return list(messages)
    system, user, *rest = messages
    return [{**user, "content": f"{system['content']}{JOINT}{user['content']}"}, *rest]


def written(parts: Parts, messages: Sequence[Message]) -> str:
    """Return the text of a conversation that ends with a user message, written turn by turn as in
    an episode."""
    talk = without_system(messages) if parts.system_open is None else list(messages)
    if talk[0]["role"] == "system":
        text = f"{parts.system_open}{talk.pop(0)['content']}{parts.system_user}"
        text += parts.trimmed(talk[0]["content"], first=True)
    else:
        text = parts.plain_open + parts.trimmed(talk[0]["content"])
    for response, user in zip(talk[1::2], talk[2::2], strict=True):
        text += (
            parts.after_user
            + response["content"]
            + parts.after_response
            + parts.trimmed(user["content"])
        )
    return text + parts.after_user


def literal(text: str) -> str:
    """Return `text` as a Jinja string literal."""
    # Backslashes are escaped first, because the other escapes add backslashes.
    text = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{text}'"


def pinned_template(parts: Parts, image_text: str = "") -> str:
    """Return an append-only template that writes exactly what `written` writes.

    `image_text` is the text for an image in a message of several parts. It is "" for text-only
    models.
    """
    user = "text(message)" if image_text else "message['content']"
    trim = {
        (False, False): "",
        (True, False): ".lstrip()",
        (False, True): ".rstrip()",
        (True, True): ".strip()",
    }
    cut = trim[parts.trims]
    cut_first = trim[parts.trims_first]
    if parts.system_open is None:
        first = f"{literal(parts.plain_open)} + (system + {literal(JOINT)} + {user}){cut}"
    else:
        first = f"{literal(parts.system_open)} + system + {literal(parts.system_user or '')} + {user}{cut_first}"
    values = {
        "@first@": first,
        "@plain@": f"{literal(parts.plain_open)} + {user}{cut}",
        "@later@": f"{literal(parts.after_response)} + {user}{cut}",
        "@after_user@": literal(parts.after_user),
        "@user_end@": literal(parts.user_end),
        "@end@": literal(parts.end),
    }
    text = _PINNED
    # Use `replace`, because `format` would interpret the braces of templates.
    for mark, value in values.items():
        text = text.replace(mark, value)
    return _PARTS.replace("@image@", literal(image_text)) + text if image_text else text


_PINNED = """{#- Made by spa from the model's own chat template: what it writes is what the model was trained on. -#}
{%- if messages[0]['role'] == 'system' -%}
{%- set system, talk = messages[0]['content'], messages[1:] -%}
{%- else -%}
{%- set system, talk = none, messages -%}
{%- endif -%}
{%- for message in talk -%}
{%- if message['role'] != ('assistant' if loop.index0 is odd else 'user') -%}
{{- raise_exception('after a system message, user and assistant take turns, the user first') -}}
{%- elif message['role'] == 'assistant' -%}
{{- message['content'] -}}
{%- if loop.last -%}{{- @end@ -}}{%- endif -%}
{%- else -%}
{%- if not loop.first -%}
{{- @later@ -}}
{%- elif system is none -%}
{{- @plain@ -}}
{%- else -%}
{{- @first@ -}}
{%- endif -%}
{%- if add_generation_prompt or not loop.last -%}{{- @after_user@ -}}{%- else -%}{{- @user_end@ -}}{%- endif -%}
{%- endif -%}
{%- endfor -%}"""

_PARTS = """{%- macro text(message) -%}
{%- if message['content'] is string -%}{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}{{- part['text'] if part['type'] == 'text' else @image@ -}}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
"""


SYSTEM_TURN: Message = {"role": "system", "content": "You play a game."}
"""System message of the test conversations, which are compared with and without it."""
_RESPONSE = "<think>plan {}</think><answer>Left || Up</answer>"
CONVERSATIONS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    # (user messages, responses); each is compared up to the last user message
    (("Rules.",), ()),
    (tuple(f"Turn {i}." for i in range(12)), tuple(_RESPONSE.format(i) for i in range(11))),
    (("Rules.", "Turn 2."), (f"<think><observation>\n_P\n</observation>{_RESPONSE[7:]}",)),
    (("  Rules.\n", "\n\n Turn\t2. \n", " \t", ""), ("<think>x", "<think>x</think>", "<think>")),
    (("Rules.", "Turn 2.", "Turn 3."), ("<think>x</think>\n<answer>Up</answer> \n", "<think>\n\n")),
)
"""Test conversations: plain ones, and some with white space, unfinished blocks and empty turns."""


def examine(
    template: str,
    render_with: Callable[[str], Render],
    *,
    end_of: Callable[[Parts], Parts],
    image_text: str = "",
) -> tuple[str, Parts, str]:
    """Choose the template for training and serving. Returns the template, its parts, and the reason
    why it replaces the model's own template ("" if it does not).

    `render_with` returns the rendering function of a template. `end_of` fills in `Parts.end`, which
    depends on the tokenizer.

    Raises ModelError if no conversation can be rendered, if the template loses messages, or if
    there is no equivalent append-only template.
    """
    parts = end_of(take_apart(render_with(template)))
    # A server would write the current date, but training writes a fixed one.
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
    """Compare test conversations that are rendered as a whole with the same conversations written
    turn by turn with `parts`. Returns a description of the first difference, or ""."""
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
    """Return a conversation that alternates between user messages and responses."""
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

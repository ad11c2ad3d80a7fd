"""Convert messages to tokens. Each text is tokenized exactly once.

An episode's tokens are append-only. The text of the chat template is tokenized once, when it is
sent, and responses stay the sampled ids. Because nothing is rendered, tokenized or searched again
later, the mask of sampled tokens is correct for every model family.

`check_tokens` compares the tokens that are appended turn by turn with a rendering of the whole
conversation.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from spa.errors import ModelError
from spa.prompts.template_parts import (
    CONVERSATIONS,
    SYSTEM_TURN,
    Parts,
    alternate,
    examine,
    read_template,
    renderer,
    without_system,
)
from spa.prompts.text_tokens import TextTokens
from spa.types import IMAGE, Message

NOT_SEEING = (
    "The environment shows pictures, but the model reads only text. Use a vision-language "
    "model (such as Qwen2-VL or LLaVA) with the files of its image processor, or set "
    "render_mode: text in custom_envs."
)
# Placeholders that no template contains. They mark the position of messages in rendered text.
_BEFORE = "BEFOREPLACEHOLDER"
_AFTER = "AFTERPLACEHOLDER"


class ChatTemplate:
    """Converts messages to tokens with a tokenizer's chat template, which is parsed once.

    The constructor renders short conversations with placeholders to find the texts around a user
    message. Later turns need only these texts. `pinned` is the reason why another template replaces
    the tokenizer's own, or "" if it is used unchanged (`spa.prompts.template_parts`). `tokenizer`
    is a copy that has the template in use.

    `images` is the `spa.models.vision.ImageReader` of a vision model. The attribute of this name is
    None for a text-only model, or if the template writes images in an unknown way. `stop_ids` are
    additional ids that end a response, from the model's generation config.

    Raises ModelError if the tokenizer has no chat template, or one that does not keep the messages
    in order.
    """

    def __init__(self, tokenizer: Any, images: Any = None, *, stop_ids: Iterable[int] = ()) -> None:
        own = read_template(tokenizer)
        # Copy the tokenizer, because the code below replaces the template, and the caller's
        # tokenizer must keep its own.
        self.tokenizer = copy.copy(tokenizer)
        self._tokens = TextTokens(tokenizer)
        self._token_texts: dict[int, str] = {}
        self._stops = frozenset(int(i) for i in stop_ids)
        self._image_text = "" if images is None else self._find_image_text(own)
        # A template must write one image token per image, which is then repeated as often as
        # needed.
        writes_image = (
            images is not None and self.encode(self._image_text).count(images.image_id) == 1
        )
        self.images = images if writes_image else None
        text, self.parts, self.pinned = examine(
            own,
            lambda template: renderer(tokenizer, template),
            end_of=self._with_end,
            image_text=self._image_text if self.images is not None else "",
        )
        if text != own:
            self.tokenizer.chat_template = text
        self._render = renderer(tokenizer, text)
        # A template's markers must not open a turn if they occur inside a message.
        self._tokens.know_markers(self.parts.texts())
        self.has_system = self.parts.system_open is not None
        self.end_ids = self._tokens.encode_after(self.parts.end)
        """Ids that the template writes at the end of a response; the last one is a stop id."""
        self.stop_ids = self._stops_of_tokenizer() | {self.end_ids[-1]}

    def start(
        self, messages: tuple[Message, ...], prefill: str, images: Sequence[bytes] = ()
    ) -> list[int]:
        """Return the token ids of the first prompt: messages, generation prompt and prefill.

        Control tokens in a message are encoded as plain text.
        """
        text, guard = self._begun(messages)
        return self._encode_with(text + prefill, images, guard, first=True)

    def start_with_ends(self, messages: tuple[Message, ...]) -> tuple[str, list[int], list[int]]:
        """Return the text of the first prompt without the prefill, its token ids, and the position
        in the text at which each token ends."""
        text, guard = self._begun(messages)
        ids, ends = self._tokens.pieces_with_ends(text, guard, first=True)
        return (text.replace(guard, "") if guard else text), ids, ends

    def _begun(self, messages: tuple[Message, ...]) -> tuple[str, str]:
        """Render the first prompt without the prefill, with guards in its messages (see
        `TextTokens.guarded`). Returns the text and the guard."""
        talk = list(messages) if self.has_system else without_system(messages)
        # The template requires a system message, so an empty one is added.
        if self.parts.user_open is None and talk and talk[0]["role"] != "system":
            talk = [{"role": "system", "content": ""}, *talk]
        guard, told = self._tokens.guarded([str(message["content"]) for message in talk])
        talk = [{**message, "content": text} for message, text in zip(talk, told, strict=True)]
        return self._render(talk), guard

    def follow(
        self,
        user_text: str,
        prefill: str,
        *,
        response: Sequence[int] = (),
        images: Sequence[bytes] = (),
    ) -> list[int]:
        """Return the token ids between two responses: end marker, user message, generation prompt
        and prefill.

        `response` has the ids of the first response, or at least its last ones. If the model has
        sampled the end marker or its beginning, the sampled part is not repeated.
        """
        guard, (told,) = self._tokens.guarded([user_text])
        parts = self.parts
        text = parts.after_response + parts.trimmed(told) + parts.after_user + prefill
        return self._encode_with(text, images, guard, first=False)[self._sampled_end(response) :]

    def _sampled_end(self, response: Sequence[int]) -> int:
        """Return the number of leading end-marker tokens with which a response already ends."""
        end = self.end_ids
        tail = [int(i) for i in response[-len(self.end_ids) :]]
        # If the last token of the marker was sampled, the whole marker counts as present. Missing
        # tokens cannot be inserted before a sampled token.
        if tail and tail[-1] == end[-1]:
            return len(end)
        # A response that was truncated inside the marker ends with the first part of the marker.
        return next(
            (n for n in range(min(len(tail), len(end) - 1), 0, -1) if tail[-n:] == end[:n]), 0
        )

    def response_ids(self, response: str, prefill: str) -> list[int]:
        """Tokenize a given response, whose text includes the prefill. Returns the token ids after
        the prefill, followed by the end marker."""
        return [*self.response_tokens(response, prefill)[0], *self.end_ids]

    def response_tokens(self, response: str, prefill: str) -> tuple[list[int], list[int]]:
        """Tokenize a given response, whose text includes the prefill, as a continuation of the
        prefill. Returns the token ids after the prefill, and the position at which each token ends
        in the text after the prefill. Control tokens in the response are encoded as plain text."""
        return self._tokens.encode_with_ends(
            response.removeprefix(prefill), after=self.parts.after_user + prefill
        )

    @property
    def end_id(self) -> int:
        """The id that ends a response."""
        return self.end_ids[-1]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of rendered text."""
        return self._tokens.encode(text)

    def _encode_with(
        self, text: str, images: Sequence[bytes], guard: str, *, first: bool
    ) -> list[int]:
        """Return the token ids of rendered text. The image tokens of `images` (PNG files) replace
        the IMAGE placeholders.

        Raises ModelError for images with a text-only model, or if the number of placeholders
        differs from the number of images.
        """
        if self.images is None and images:
            raise ModelError(NOT_SEEING)
        if images:
            text = text.replace(IMAGE, self._image_text)
        ids = self._tokens.encode_pieces(text, guard, first=first)
        return ids if self.images is None else self.images.expand(ids, images)

    def save_pretrained(self, folder: Path) -> None:
        """Save the tokenizer with the template in use, and the image processor if there is one, to
        a model folder."""
        self.tokenizer.save_pretrained(folder)
        if self.images is not None:
            self.images.processor.save_pretrained(folder)

    def decode_response(self, ids: np.ndarray | list[int]) -> str:
        """Return the text of sampled ids, without an end marker or a stop token at their end."""
        ids = [int(i) for i in ids]
        if ids[-len(self.end_ids) :] == self.end_ids:
            ids = ids[: -len(self.end_ids)]
        elif ids and ids[-1] in self.stop_ids:
            ids = ids[:-1]
        return self._tokens.decode_after(ids)

    def token_text(self, token: int) -> str:
        """Return the text of one id that follows other text, as `decode_response` decodes it.
        Cached."""
        if token not in self._token_texts:
            self._token_texts[token] = self.decode_response([token])
        return self._token_texts[token]

    def _find_image_text(self, template: str) -> str:
        """Return the text that the template writes for an image; "" if the template does not
        support images."""
        parts = [
            {"type": "text", "text": _BEFORE},
            {"type": "image"},
            {"type": "text", "text": _AFTER},
        ]
        message: Any = {"role": "user", "content": parts}
        try:
            text = renderer(self.tokenizer, template)([message])
        except ModelError:
            return ""
        _, marker, rest = text.partition(_BEFORE)
        between, end, _ = rest.partition(_AFTER)
        return between if marker and end else ""

    def _with_end(self, parts: Parts) -> Parts:
        """Set `end` of the parts: the first special token that the template writes after a
        response, with the white space before it. If it writes none, use the end-of-sequence
        token."""
        control = self._tokens.special_ids | self._stops_of_tokenizer()
        # A begin-of-sequence token may follow a response but does not end it.
        if (
            self.tokenizer.bos_token_id is not None
            and self.tokenizer.bos_token_id != self.tokenizer.eos_token_id
        ):
            control -= {int(self.tokenizer.bos_token_id)}
        for token in self.encode(parts.after_response):
            if token not in control:
                continue
            text = self._tokens.decode([token])
            before, marker, _ = parts.after_response.partition(text)
            return (
                replace(parts, end=before + text)
                if marker and not before.strip()
                else self._ended(parts)
            )
        return self._ended(parts)

    def _ended(self, parts: Parts) -> Parts:
        stops = self._stops_of_tokenizer()
        if not stops:
            raise ModelError(
                "The tokenizer has no end-of-turn or end-of-sequence token, so responses "
                "could never end. Use the tokenizer of an instruct model."
            )
        eos = self.tokenizer.eos_token_id
        end = self._tokens.decode([min(stops) if eos is None else int(eos)])
        return replace(parts, end=end, after_response=end + parts.after_response)

    def _stops_of_tokenizer(self) -> frozenset[int]:
        eos = self.tokenizer.eos_token_id
        return self._stops if eos is None else self._stops | {int(eos)}


class TokenBuffer:
    """The tokens of one episode. The rollout appends to it and finally converts it to arrays."""

    def __init__(
        self,
        template: ChatTemplate,
        messages: tuple[Message, ...],
        prefill: str,
        images: Sequence[bytes] = (),
    ) -> None:
        self._template = template
        self._prefill = prefill
        self._begin = 0  # index of the current conversation's first token
        self._ids = template.start(messages, prefill, images)
        self._sampled = [False] * len(self._ids)
        self._logprobs = [0.0] * len(self._ids)
        self._turns = [-1] * len(self._ids)
        self._turn = 0

    def __len__(self) -> int:
        return len(self._ids) - self._begin

    def ids(self) -> np.ndarray:
        """Return the ids of the current conversation, which the engine continues; int32 [T]."""
        return np.asarray(self._ids[self._begin :], dtype=np.int32)

    def restart(self, ids: Sequence[int]) -> None:
        """Begin the next turn with `ids`, a new conversation; earlier tokens stay in the arrays."""
        self._begin = len(self._ids)
        self._append_prompt(ids)

    def append_sampled(self, ids: np.ndarray, logprobs: np.ndarray, *, forced: int = 0) -> None:
        """Append a response, of which all but the first `forced` ids were sampled."""
        self._ids += [int(i) for i in ids]
        self._sampled += [False] * forced + [True] * (len(ids) - forced)
        self._logprobs += [float(value) for value in logprobs]
        self._turns += [self._turn] * len(ids)

    def append_user(self, text: str, images: Sequence[bytes] = ()) -> None:
        """Append the template's text from the end of the response to the start of the next one."""
        self._append_prompt(self.user_delta(text, images))

    def _append_prompt(self, ids: Sequence[int]) -> None:
        self._turn += 1
        self._ids += ids
        self._sampled += [False] * len(ids)
        self._logprobs += [0.0] * len(ids)
        self._turns += [self._turn] * len(ids)

    def user_delta(self, text: str, images: Sequence[bytes] = ()) -> list[int]:
        """Return the ids that `append_user` would append."""
        count = len(self._template.end_ids)
        # Only sampled tokens count: an end marker in a prompt belongs to another turn.
        tail = zip(self._ids[-count:], self._sampled[-count:], strict=True)
        response = [token for token, sampled in tail if sampled]
        return self._template.follow(text, self._prefill, response=response, images=images)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return token_ids int32, sampled bool, logprobs float32 and turn_index int16 of all
        conversations; each [T]."""
        return {
            "token_ids": np.asarray(self._ids, dtype=np.int32),
            "sampled": np.asarray(self._sampled, dtype=np.bool_),
            "logprobs": np.asarray(self._logprobs, dtype=np.float32),
            "turn_index": np.asarray(self._turns, dtype=np.int16),
        }


PREFILLS = ("<think>", "<answer>")
_LONGEST = 4000  # largest number of tokens that are compared


def check_tokens(template: ChatTemplate) -> None:
    """Check that the tokens of test conversations are the same turn by turn and as a whole.

    Differences are allowed where a response begins or ends. There, a server that tokenizes the
    whole text may merge characters that belong to separate tokens in an episode. Raises ModelError
    for any other difference.
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
    """Return the prefill with which all responses of a conversation begin; "" if there is none."""
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
    """Tokenize a conversation turn by turn, as in an episode. It must end with a user message.
    Returns the ids, up to the next response's prefill, and the positions where responses begin and
    end."""
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
    """Tokenize a conversation as an inference server does: render it as a whole, then tokenize the
    text. Returns the ids, including the next response's prefill."""
    text = renderer(template.tokenizer, template.tokenizer.get_chat_template())(messages)
    return template.encode(text + prefill_of(messages))


def joined_borders(ours: list[int], served: list[int], borders: Sequence[int]) -> int:
    """Count the differences between the two lists of ids. Raises ModelError if one is not where a
    response begins or ends."""
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

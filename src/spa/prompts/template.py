"""From messages to tokens, once and in one direction.

An episode's tokens are only ever appended to: the chat template's text is tokenised when it is sent, replies are kept
as the ids that were sampled. Nothing is rendered again, tokenised again or searched for afterwards, so the mask of
sampled tokens is right for every model family.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError

from spa.errors import ModelError
from spa.types import IMAGE, Message

_FIRST, _REPLY, _USER = "FIRSTPLACEHOLDER", "REPLYPLACEHOLDER", "USERPLACEHOLDER"
NOT_SEEING = (
    "the environment shows pictures, and this model reads only text. Use a vision-language model (Qwen2-VL, LLaVA and "
    "the like, with the files of its image processor), or render_mode: text in custom_envs."
)
_INJECTED_THINK = re.compile(r"<think>\s*(</think>\s*)?$")  # an empty think block, or the start of one


class ChatTemplate:
    """What a tokenizer's chat template puts around messages, taken apart once.

    Works by rendering a short conversation with placeholders: the text between a reply and the next user message, and
    between that message and the next reply, is what every later turn needs.

    `images`: the model's spa.models.vision.ImageReader, if it sees; None for a model that reads only text, and for one
    whose template writes pictures in a way that we do not know.

    Raises ModelError if the tokenizer has no chat template, or one that does not keep the messages' text in order.
    """

    def __init__(self, tokenizer: Any, images: Any = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ModelError(
                f"the tokenizer of {getattr(tokenizer, 'name_or_path', 'this model')!r} has no chat template. Use an "
                "instruct model, or set actor_rollout_ref.model.chat_template to a Jinja file with one."
            )
        self.tokenizer = tokenizer
        self.has_system = self._accepts_system()
        probe = self._render(
            [
                {"role": "user", "content": _FIRST},
                {"role": "assistant", "content": _REPLY},
                {"role": "user", "content": _USER},
            ]
        )
        _, found_first, rest = probe.partition(_FIRST)
        header, found_reply, rest = rest.partition(_REPLY)
        self._after_reply, found_user, self._tail = rest.partition(_USER)
        if not (found_first and found_reply and found_user):
            raise ModelError("the chat template drops or reorders messages; it cannot be used for multi-turn episodes.")
        # What stands before a finished reply may be more than the generation prompt: there may be none, or the model is
        # expected to write the rest of the header itself (a channel's name). Replies begin after all of it.
        prompt = _INJECTED_THINK.sub("", self._tail)
        self._after_user = _INJECTED_THINK.sub("", header) if header.startswith(prompt) else prompt
        self.stop_ids = self._stop_ids()
        self._image_text = "" if images is None else self._find_image_text()
        writes_image = images is not None and self.encode(self._image_text).count(images.image_id) == 1
        self.images = images if writes_image else None

    def start(self, messages: tuple[Message, ...], opener: str, images: Sequence[bytes] = ()) -> list[int]:
        """Token ids of the first prompt: messages, generation prompt, opener."""
        if not self.has_system and messages and messages[0]["role"] == "system":
            system, user, *rest = messages
            messages = ({"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *rest)
        text = self._render(list(messages))
        if self._tail and text.endswith(self._tail):
            text = text.removesuffix(self._tail) + self._after_user
        elif not self._tail:
            text += self._after_user
        return self.encode_with(_INJECTED_THINK.sub("", text) + opener, images)

    def follow(self, user_text: str, opener: str, *, last_id: int | None, images: Sequence[bytes] = ()) -> list[int]:
        """Token ids between a reply and the next: end marker, user message, generation prompt, opener.

        `last_id` is the last id of the reply; if the model already sampled the end marker, it is not written twice.
        """
        ids = self.encode_with(self._after_reply + user_text.strip() + self._after_user + opener, images)
        if last_id is not None and ids and last_id == ids[0] and last_id in self.stop_ids:
            return ids[1:]
        return ids

    def reply_ids(self, reply: str, opener: str) -> list[int]:
        """Token ids of a given reply (opener included in the text) without the opener, and with the end marker."""
        ids = self.encode(reply.removeprefix(opener))
        return [*ids, self.end_id]

    @property
    def end_id(self) -> int:
        """The id that ends a reply."""
        ids = self.encode(self._after_reply)
        return ids[0] if ids and ids[0] in self.stop_ids else int(self.tokenizer.eos_token_id)

    def encode(self, text: str) -> list[int]:
        """Token ids of text that is already rendered."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def encode_with(self, text: str, images: Sequence[bytes]) -> list[int]:
        """Token ids of rendered text, with room for the pictures (PNG files) where it says IMAGE.

        Raises ModelError if the model does not see, or if there are not as many marks as pictures.
        """
        if self.images is None:
            if images:
                raise ModelError(NOT_SEEING)
            return self.encode(text)
        ids = self.encode(text.replace(IMAGE, self._image_text) if images else text)
        return self.images.expand(ids, images)

    def save_pretrained(self, folder: Path) -> None:
        """The tokenizer, and the image processor if there is one, as files of a model folder."""
        self.tokenizer.save_pretrained(folder)
        if self.images is not None:
            self.images.processor.save_pretrained(folder)

    def decode_reply(self, ids: np.ndarray | list[int]) -> str:
        """The text of sampled ids, without the end marker if they have one."""
        ids = [int(i) for i in ids]
        if ids and ids[-1] in self.stop_ids:
            ids = ids[:-1]
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _render(self, messages: list[Message]) -> str:
        # Thinking is written by us, in the opener, so templates that inject a think block are told not to.
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )

    def _find_image_text(self) -> str:
        """What the template writes for a picture between two texts; empty if it does not know pictures."""
        parts = [{"type": "text", "text": _REPLY}, {"type": "image"}, {"type": "text", "text": _USER}]
        message: Any = {"role": "user", "content": parts}
        try:
            text = self._render([message])
        except (TemplateError, TypeError):
            return ""
        _, found, rest = text.partition(_REPLY)
        between, end, _ = rest.partition(_USER)
        return between if found and end else ""

    def _accepts_system(self) -> bool:
        messages = [{"role": "system", "content": _REPLY}, {"role": "user", "content": _USER}]
        try:
            return _REPLY in self._render(messages)
        except TemplateError:
            return False

    def _stop_ids(self) -> frozenset[int]:
        stop = set()
        if self.tokenizer.eos_token_id is not None:
            stop.add(int(self.tokenizer.eos_token_id))
        first = self.encode(self._after_reply)[:1]
        special = set(self.tokenizer.all_special_ids) | {
            i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special
        }
        stop |= {i for i in first if i in special}
        if not stop:
            raise ModelError("the tokenizer has no end-of-turn or end-of-sequence token, so replies could never end.")
        return frozenset(stop)


class TokenBuffer:
    """The tokens of one episode, append-only. Built by the rollout, frozen into arrays at the end."""

    def __init__(
        self, template: ChatTemplate, messages: tuple[Message, ...], opener: str, images: Sequence[bytes] = ()
    ) -> None:
        self._template, self._opener = template, opener
        self._ids = template.start(messages, opener, images)
        self._sampled = [False] * len(self._ids)
        self._logprobs = [0.0] * len(self._ids)
        self._turns = [-1] * len(self._ids)
        self._turn = 0

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self) -> np.ndarray:
        """int32 [T], what the engine continues."""
        return np.asarray(self._ids, dtype=np.int32)

    def append_sampled(self, ids: np.ndarray, logprobs: np.ndarray) -> None:
        """Append a reply as it was sampled."""
        self._ids += [int(i) for i in ids]
        self._sampled += [True] * len(ids)
        self._logprobs += [float(value) for value in logprobs]
        self._turns += [self._turn] * len(ids)

    def append_user(self, text: str, images: Sequence[bytes] = ()) -> None:
        """Append what the template writes from the end of the reply to the start of the next one."""
        delta = self.user_delta(text, images)
        self._turn += 1
        self._ids += delta
        self._sampled += [False] * len(delta)
        self._logprobs += [0.0] * len(delta)
        self._turns += [self._turn] * len(delta)

    def user_delta(self, text: str, images: Sequence[bytes] = ()) -> list[int]:
        """The ids that `append_user` would append."""
        last = self._ids[-1] if self._sampled[-1] else None
        return self._template.follow(text, self._opener, last_id=last, images=images)

    def arrays(self) -> dict[str, np.ndarray]:
        """token_ids int32, sampled bool, logprobs float32, turn_index int16; each [T]."""
        return {
            "token_ids": self.ids(),
            "sampled": np.asarray(self._sampled, dtype=np.bool_),
            "logprobs": np.asarray(self._logprobs, dtype=np.float32),
            "turn_index": np.asarray(self._turns, dtype=np.int16),
        }

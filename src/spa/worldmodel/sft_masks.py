"""Tokens of a conversation that carry the loss of SFT and of replay: `sft.data.loss_on`."""

from collections.abc import Callable, Mapping, Sequence

from spa.formats.blocks import find_block
from spa.imports import load_setting
from spa.plugins import defined_by_methods
from spa.prompts.template import ChatTemplate
from spa.prompts.token_spans import tokens_touching
from spa.types import Message

SFTMask = Callable[[Message, Sequence[int], ChatTemplate], list[bool]]
"""(message, its token ids, template) -> which of the tokens carry loss.

A message of role assistant is a trained response, with its end marker and without its prefill. A
message of role user is the environment's text before a trained response. The first prompt never
carries loss.
"""


def response(message: Message, ids: Sequence[int], template: ChatTemplate) -> list[bool]:
    """All tokens of the responses."""
    return [message["role"] == "assistant"] * len(ids)


def states_only(message: Message, ids: Sequence[int], template: ChatTemplate) -> list[bool]:
    """The tokens that touch a state block of a response."""
    spans = [find_block(message["content"], tag) for tag in ("observation", "prediction")]
    if message["role"] == "user" or spans == [None, None]:
        return [False] * len(ids)
    # Spans are character offsets in the response's text, which excludes the end marker.
    body = ids[: len(ids) - len(template.end_ids)]
    touching = tokens_touching(body, [span for span in spans if span], template)
    return touching + [False] * len(template.end_ids)


def no_states(message: Message, ids: Sequence[int], template: ChatTemplate) -> list[bool]:
    """The tokens of a response outside its state blocks."""
    if message["role"] == "user":
        return [False] * len(ids)
    return [not inside for inside in states_only(message, ids, template)]


SFT_MASKS: Mapping[str, SFTMask] = {
    "response": response,
    "states_only": states_only,
    "no_states": no_states,
}


def sft_mask(name: str) -> SFTMask:
    """The mask of this name here, of the file of this name in `spa.methods`, or the user's own at
    `module:name`. Raises ConfigError if there is none."""
    masks = {**SFT_MASKS, **defined_by_methods("sft_mask")}
    return masks[name] if name in masks else load_setting("sft.data.loss_on", name, masks)

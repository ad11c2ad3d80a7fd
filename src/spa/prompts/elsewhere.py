"""The same prompt as if the game stood elsewhere: its last message shows another state.

What else it says, turn, reward and actions left, stays as it was."""

from dataclasses import replace

import numpy as np

from spa.prompts.render import STATE
from spa.prompts.template import ChatTemplate
from spa.types import Message, Prompt


def elsewhere(
    prompt: Prompt, shown: str, state: str, template: ChatTemplate | None
) -> Prompt | None:
    """`prompt` with `state` where its last message shows `shown` as the state; None if that message
    does not.

    All before that message keeps its tokens. `template` None: an engine without tokens.
    """
    last: Message = prompt.messages[-1]
    # Take the last occurrence, since the rules in the same message may quote a state.
    before, marker, after = last["content"].rpartition(f"{STATE}{shown}\n")
    if not shown or not marker:
        return None
    text = f"{before}{STATE}{state}\n{after}"
    messages = (*prompt.messages[:-1], Message(role=last["role"], content=text))
    ids = prompt.token_ids
    if template is not None and any(message["role"] == "assistant" for message in messages):
        end = template.end_ids
        # `response=end` makes `follow` leave out the end marker, so the marker stays with the kept
        # tokens.
        kept = len(ids) - len(template.follow(last["content"], prompt.prefill, response=end))
        ids = np.concatenate(
            [ids[:kept], np.asarray(template.follow(text, prompt.prefill, response=end), np.int32)]
        )
    elif template is not None:
        ids = np.asarray(template.start(messages, prompt.prefill), np.int32)
    return replace(prompt, messages=messages, token_ids=ids)

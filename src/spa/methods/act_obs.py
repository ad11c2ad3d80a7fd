"""ActObs (arXiv 2609.20715): SFT whose loss also covers the states that the environment shows
between responses. Enable it with `sft.data.loss_on=act_obs`."""

from collections.abc import Sequence

from spa.methods import Method
from spa.prompts.render import shown_state
from spa.prompts.template import ChatTemplate
from spa.prompts.token_spans import tokens_touching
from spa.types import IMAGE, Message

METHODS = {
    "act_obs": Method(
        description=(
            "SFT with loss also on the states that the environment shows between responses (ActObs)"
        ),
        overrides=("sft.data.loss_on=act_obs",),
    )
}


def sft_mask(message: Message, ids: Sequence[int], template: ChatTemplate) -> list[bool]:
    """Return, for each token of a message, whether it contributes to the SFT loss. All tokens of a
    response do. In an environment message, only the tokens of the state do.

    A token that overlaps the state counts as part of it. A message that does not have spa's layout
    counts entirely as state. An image, or a state whose text the template changes, does not
    contribute.
    """
    if message["role"] == "assistant":
        return [True] * len(ids)
    state = shown_state(message["content"]) or message["content"].strip()
    begin = template.decode_response(list(ids)).rfind(state) if state and IMAGE not in state else -1
    if begin < 0:
        return [False] * len(ids)
    return tokens_touching(ids, [(begin, begin + len(state))], template)

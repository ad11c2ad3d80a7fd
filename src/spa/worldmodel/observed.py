"""ActObs (arXiv 2609.20715): SFT on the states that the environment shows, too,
`loss_on=response_and_shown`."""

from collections.abc import Sequence

from spa.prompts.render import shown_state
from spa.prompts.template import ChatTemplate
from spa.prompts.token_spans import tokens_touching
from spa.types import IMAGE


def observed_tokens(message: str, ids: Sequence[int], template: ChatTemplate) -> list[bool]:
    """Which of the tokens between two responses show the state; nothing around it. A token that
    touches it belongs to it.

    `message`: what the environment says there; in another layout than ours, all of it is the state.
    Pictures, and a state that a template changes, have no tokens.
    """
    state = shown_state(message) or message.strip()
    # A picture's tokens are no text, so nothing is looked for there.
    begin = template.decode_reply(list(ids)).rfind(state) if state and IMAGE not in state else -1
    if begin < 0:
        return [False] * len(ids)
    return tokens_touching(ids, [(begin, begin + len(state))], template)

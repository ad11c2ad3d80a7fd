"""Masks of the tokens in states, and masks of the tokens in the policy loss for settings other than
`sampled`."""

from collections.abc import Sequence

import numpy as np

from spa.formats.blocks import find_block
from spa.prompts.template import ChatTemplate
from spa.prompts.token_spans import token_bounds, tokens_touching
from spa.training.batch import LossMask
from spa.types import Episode


def loss_masks(
    episodes: Sequence[Episode], mask: LossMask, template: ChatTemplate | None
) -> list[np.ndarray] | None:
    """Return the loss mask of each episode, bool [T]; None for `sampled`, which needs no mask.

    For `answer_only`, see `answer_mask`; for `no_states`, the function `no_states`.
    `all_after_system` selects every token after the system message, including environment text, as
    in the original code.

    Raises ValueError if an episode has no tokens, or if the mask needs a template and `template` is
    None.
    """
    if mask == "sampled":
        return None
    if template is None:
        raise ValueError(
            f"The loss mask {mask} needs the argument template, the model's chat template"
        )
    if mask == "answer_only":
        return [answer_mask(episode, template) for episode in episodes]
    if mask == "no_states":
        return [no_states(episode, template) for episode in episodes]
    return [after_system(episode, template) for episode in episodes]


def answer_mask(episode: Episode, template: ChatTemplate) -> np.ndarray:
    """Return the mask of the answers, bool [T]. In each turn, it selects the sampled tokens from
    the content of the answer block to the end of the turn. A prediction after the answer is left
    out.

    In a turn without exactly one answer block, only the last sampled token is in the mask. The mask
    always contains this token, because it has the reward and marks the end of the turn.
    """
    ids, sampled, turn_index = _tokens(episode)
    mask = np.zeros(len(ids), dtype=bool)
    for number, turn in enumerate(episode.turns):
        where = np.flatnonzero(sampled & (turn_index == number))
        if not len(where):
            continue
        span = find_block(turn.response_text, "answer")
        # The mask always contains the last sampled token, which has the reward and marks the end of
        # the turn.
        mask[where[-1]] = True
        if span is None:
            continue
        # `response_text` begins with the prefill, which is not sampled, so positions in it are shifted.
        forced = len(turn.response_text) - len(template.decode_response(ids[where]))
        mask[where[token_at(template, ids[where], span[0] - forced) :]] = True
        later = find_block(turn.response_text, "prediction")
        if later is not None and later[0] > span[1]:
            first, end = (token_at(template, ids[where], place - forced) for place in later)
            mask[where[first : min(end, len(where) - 1)]] = False
    return mask


def no_states(episode: Episode, template: ChatTemplate) -> np.ndarray:
    """Return a mask that excludes the model's states from the policy loss, bool [T]. It selects the
    sampled tokens outside observation and prediction blocks, and the last sampled token of every
    turn."""
    _, sampled, turn_index = _tokens(episode)
    # A turn consists of its prompt and its response, so its last token is a sampled one.
    last = np.append(turn_index[1:] != turn_index[:-1], True)
    return sampled & (~model_state_mask(episode, template) | last)


def env_state_mask(episode: Episode, template: ChatTemplate) -> np.ndarray:
    """Return the mask of the states that the environment shows after the first response, bool [T].

    If a chat template has changed the text of a state, no token of this state is in the mask.
    """
    ids, sampled, turn_index = _tokens(episode)
    mask = np.zeros(len(ids), dtype=bool)
    # Leave out the first state, because predicting it would mean guessing the puzzle.
    for number, turn in enumerate(episode.turns[1:], start=1):
        where = np.flatnonzero(~sampled & (turn_index == number))
        # Search for the last occurrence, because rules or a reward before the state may contain the
        # same text.
        start = template.decode_response(ids[where]).rfind(turn.state) if turn.state else -1
        if start >= 0:
            span = (start, start + len(turn.state))
            mask[where] = tokens_touching(ids[where], [span], template)
    return mask


def model_state_mask(
    episode: Episode, template: ChatTemplate, *, right: bool = False
) -> np.ndarray:
    """Return the mask of the states that the model wrote, bool [T].

    It selects the sampled tokens inside observation and prediction blocks. With `right`, it selects
    only correct blocks. Predictions of turns without an executed action are then left out, because
    a copy of the state would be correct there.
    """
    ids, sampled, turn_index = _tokens(episode)
    mask = np.zeros(len(ids), dtype=bool)
    for number, turn in enumerate(episode.turns):
        where = np.flatnonzero(sampled & (turn_index == number))
        forced = len(turn.response_text) - len(template.decode_response(ids[where]))
        spans = []
        for tag, truth in (("observation", turn.target), ("prediction", turn.next_target)):
            span = find_block(turn.response_text, tag)
            # A block that begins in forced text was not written by the model.
            if span is None or span[0] >= span[1] or span[0] < forced:
                continue
            if right and tag == "prediction" and not turn.executed:
                continue
            if not right or turn.response_text[slice(*span)].strip() == truth.strip():
                spans.append((span[0] - forced, span[1] - forced))
        if spans:
            mask[where] = tokens_touching(ids[where], spans, template)
    return mask


def _tokens(episode: Episode) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if episode.token_ids is None or episode.sampled is None or episode.turn_index is None:
        raise ValueError(
            f"Episode {episode.episode_id} has no tokens; loss masks need episodes that a model "
            "with a tokenizer played"
        )
    return episode.token_ids, episode.sampled, episode.turn_index


def token_at(template: ChatTemplate, ids: np.ndarray, character: int) -> int:
    """Return the index of the first token of the sampled `ids` whose text includes the character at
    index `character`."""
    if character <= 0:
        return 0
    ends = [end for _, end in token_bounds(ids, template)]
    return next((place for place, end in enumerate(ends) if end > character), len(ids))


def after_system(episode: Episode, template: ChatTemplate) -> np.ndarray:
    """Return the mask of every token after the system message and the template's opening of the
    first user message, bool [T]."""
    if episode.token_ids is None:
        raise ValueError(
            f"Episode {episode.episode_id} has no tokens; loss masks need episodes that a model "
            "with a tokenizer played"
        )
    system = episode.messages[:1] if episode.messages[0]["role"] == "system" else ()
    # Compare with a conversation that has another user message: it shares the system message and
    # the template's opening.
    other = template.start((*system, {"role": "user", "content": "\x07"}), "")
    same = 0
    while same < len(other) and other[same] == episode.token_ids[same]:
        same += 1
    return np.arange(len(episode.token_ids)) >= same

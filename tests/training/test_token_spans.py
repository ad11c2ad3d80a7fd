"""Which tokens hold which characters, also where single characters are several tokens."""

import numpy as np
import pytest
from helpers.families import NAMES, template
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from spa.prompts.template import ChatTemplate
from spa.prompts.token_spans import token_bounds, tokens_touching
from spa.training.loss_masks import token_at

BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
TEXTS = st.text(alphabet="aé√─🙂 (1,2)\n", min_size=1, max_size=30)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(words=TEXTS)
def test_every_token_of_a_character_holds_it_and_others_do_not(name, words):
    """Compared with the bytes of each token, which add up to those of the text."""
    chat = template(name)
    ids = chat.response_ids(words, "")[: -len(chat.end_ids)]
    text = chat.decode_response(ids)
    starts = np.cumsum([0, *(len(character.encode()) for character in text)])
    size = np.cumsum([0, *(len(bytes_of(chat, token)) for token in ids)])
    assert size[-1] - starts[-1] in (0, 1)  # a space in front that decoding leaves out
    size = np.maximum(size - (size[-1] - starts[-1]), 0)
    for (begin, end), first, last in zip(token_bounds(ids, chat), size, size[1:], strict=False):
        held = [n for n in range(len(text)) if starts[n] < last and starts[n + 1] > first]
        assert list(range(begin, end)) == held


def bytes_of(chat: ChatTemplate, token: int) -> bytes:
    """What a token stands for, by its name in the vocabulary."""
    name = chat.tokenizer.convert_ids_to_tokens(token)
    if name.startswith("<0x"):
        return bytes([int(name[3:5], 16)])
    if chat.tokenizer.backend_tokenizer.decoder.__class__.__name__ == "ByteLevel":
        return bytes(BYTES[character] for character in name)
    return name.replace("▁", " ").encode()


def test_bytes_of_characters_in_front_move_nothing():
    """Gemma and Mistral read a byte as a character of its own until the character is whole."""
    chat = template("gemma")
    ids = chat.response_ids("🙂🙂🙂 Left Down Left", "")
    text = chat.decode_response(ids)
    span = (text.index("Down"), text.index("Down") + 4)
    touching = np.flatnonzero(tokens_touching(ids, [span], chat))
    assert chat.decode_response([ids[place] for place in touching]).strip() == "Down"
    assert token_at(chat, np.asarray(ids), span[0]) == touching[0]
    for character in range(len(text)):
        first = np.flatnonzero(tokens_touching(ids, [(character, character + 1)], chat))[0]
        assert token_at(chat, np.asarray(ids), character) == first

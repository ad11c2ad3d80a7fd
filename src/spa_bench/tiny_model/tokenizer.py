"""The tokenizer of the bundled model. It is byte-level, so it can encode any text, and phrases of
the prompts are single tokens.

A prompt that is split into single words is too long for a model of a million parameters. So every
fixed phrase of the prompts and state sentences is one token, and so is every cell such as ` (1,2)`.
All other text is encoded as known words or, if it has none, as bytes.
"""

import re
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD = "<|endoftext|>"
START = "<|im_start|>"
END = "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Matches `(1,2)` and ` (1,2)`. The token includes the space, as in sentences.
_CELL = r" ?\(\d,\d\)"
# Matches text that differs between puzzles: cells and single digits.
_VARYING = re.compile(_CELL + r"|\d")


def fixed_phrases(texts: Iterable[str], varying: Iterable[str]) -> list[str]:
    """Split `texts` at digits, cells and the strings in `varying`. Returns the distinct pieces of
    at least two characters, in the order of their first appearance."""
    # Longest first, because an alternation takes the first alternative that matches.
    cut = re.compile(
        "|".join([*map(re.escape, sorted(varying, key=len, reverse=True)), _VARYING.pattern])
    )
    phrases: dict[str, None] = {}
    for text in texts:
        for piece in cut.split(text):
            if len(piece) > 1:
                phrases[piece] = None
    return list(phrases)


def build_tokenizer(phrases: Iterable[str], words: Iterable[str]) -> PreTrainedTokenizerFast:
    """Build a byte-level tokenizer that has a token for each of these phrases, and for each of
    these words with and without a leading space."""
    # Longest first, so that a phrase inside a longer one comes after it in the pattern below.
    phrases = sorted(dict.fromkeys(phrases), key=len, reverse=True)
    cells = [f" ({row},{column})" for row in range(10) for column in range(10)]
    known = [*phrases, *cells, *(form for word in words for form in (word, " " + word))]
    encoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary: dict[str, int] = {}
    # The vocabulary has all 256 bytes, so that any text can be encoded.
    for text in [PAD, START, END, *sorted(pre_tokenizers.ByteLevel.alphabet())]:
        vocabulary[text] = len(vocabulary)
    for text in known:
        vocabulary.setdefault(_byte_characters(encoder, text), len(vocabulary))
    # With `ignore_merges`, a piece in the vocabulary is one token. Any other piece is split into
    # its bytes.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    pattern = "|".join(
        [*(re.escape(p) for p in phrases), _CELL, r" ?[A-Za-z]+", r"\d", r"\s", r"[^\sA-Za-z\d]"]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), encoder]
    )
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        model_max_length=4096,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _byte_characters(encoder: pre_tokenizers.ByteLevel, text: str) -> str:
    return "".join(piece for piece, _ in encoder.pre_tokenize_str(text))

"""Convert text to tokens and back inside a conversation: in the context of the preceding text, with
control tokens in messages encoded as plain text.

Some tokenizers add a space at the start of a text, and remove one when they decode. A text that
follows another is therefore encoded and decoded after an anchor. The anchor is a character that
never merges with its neighbours.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

FORMAT = re.compile(r"</?(think|answer|observation|prediction)>")
"""Tags of spa's response format. Some vocabularies have them as tokens, but they never mark turns
of a conversation."""
# Candidate anchors. The first one that does not merge with any of `_PROBES` is used.
_ANCHORS = ("\x01", "\n", ")", "§")
# Texts that tokenizers may treat differently at the start: a letter, a space, a tag, a line break.
_PROBES = ("x", " x", "<", "\n")


class TextTokens:
    """Tokenizes pieces of a conversation. `special_ids` are the ids of the tokenizer's control
    tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        added = {int(i): token for i, token in tokenizer.added_tokens_decoder.items()}
        self.special_ids = frozenset(
            {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
        )
        texts = {str(text) for text in tokenizer.all_special_tokens}
        texts |= {str(token.content) for token in added.values() if token.special}
        self._others = {str(token.content) for token in added.values()} - texts
        self._control = self._pattern(texts)
        self._texts = texts
        self._anchor, self._base = self._find_anchor()

    def know_markers(self, texts: Iterable[str]) -> None:
        """Also treat added tokens that occur in these texts of a chat template as control
        tokens."""
        joined = "\n".join(texts)
        # Plain words such as `user` also occur in messages, so only tokens with a non-alphanumeric
        # character count as turn markers.
        self._texts |= {
            text for text in self._others if text in joined and text.strip() and not text.isalnum()
        }
        self._control = self._pattern(self._texts)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of text at the beginning of a conversation."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def encode_after(self, text: str) -> list[int]:
        """Return the token ids of text that follows other text."""
        if not self._anchor or not text:
            return self.encode(text)
        return self.encode(self._anchor + text)[len(self._base) :]

    def decode_after(self, ids: Sequence[int]) -> str:
        """Return the text of ids that follow other text."""
        if not self._anchor:
            return self.decode(ids)
        return self.decode([*self._base, *ids])[len(self.decode(self._base)) :]

    def encode_with_ends(self, text: str, *, after: str) -> tuple[list[int], list[int]]:
        """Tokenize text that follows the text `after`, with control tokens encoded as plain text.
        Returns the token ids, and the position in the text at which each token ends."""
        # After a control token, most tokenizers encode text as they do at the start of a text.
        border = self._control is not None and any(
            match.end() == len(after) for match in self._control.finditer(after)
        )
        guard, (told,) = self.guarded([text])
        return self.pieces_with_ends(told, guard, first=border)

    def encode_pieces(self, text: str, guard: str, *, first: bool) -> list[int]:
        """Tokenize guarded text. `first` is True at the beginning of a conversation, and False if
        the text follows other text."""
        pieces = text.split(guard) if guard else [text]
        ids = self.encode(pieces[0]) if first else self.encode_after(pieces[0])
        for piece in pieces[1:]:
            ids += self.encode_after(piece)
        return ids

    def guarded(self, texts: Sequence[str]) -> tuple[str, list[str]]:
        """Insert a guard into every control token in the texts. Returns the guard, a character that
        none of them contains, and the texts; the guard is "" if none is needed."""
        control = self._control
        if control is None or not any(control.search(text) for text in texts):
            return "", list(texts)
        # Try U+FDD0 to U+FDEF first: they are noncharacters, which no text should contain.
        guard = next(
            chr(i) for i in range(0xFDD0, 0x110000) if not any(chr(i) in text for text in texts)
        )
        # "<|im_end|>" becomes "<" and "|im_end|>", neither of which is a control token.
        return guard, [
            control.sub(lambda match: match[0][0] + guard + match[0][1:], text) for text in texts
        ]

    def pieces_with_ends(
        self, text: str, guard: str, *, first: bool
    ) -> tuple[list[int], list[int]]:
        """Tokenize guarded text; `first` as in `encode_pieces`. Returns the token ids, and the
        position at which each token ends in the text without guards."""
        ids: list[int] = []
        ends: list[int] = []
        done = 0
        for number, piece in enumerate(text.split(guard) if guard else [text]):
            anchor = "" if first and number == 0 else self._anchor
            tokens, stops = encode_with_ends(self.tokenizer, anchor + piece)
            skip = len(self._base) if anchor else 0
            ids += tokens[skip:].tolist()
            ends += [done + max(0, stop - len(anchor)) for stop in stops[skip:].tolist()]
            done += len(piece)
        return ids, ends

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids at the beginning of a conversation."""
        return self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def _find_anchor(self) -> tuple[str, list[int]]:
        """Find the anchor and its ids. The anchor is "" if the tokenizer encodes a text in the same
        way alone and after another text."""
        plain = True
        for anchor in _ANCHORS:
            base = self.encode(anchor)
            tails = [self.encode(anchor + text) for text in _PROBES]
            # An anchor must have the same tokens regardless of the text that follows it.
            if not base or any(tail[: len(base)] != base for tail in tails):
                continue
            behind = [tail[len(base) :] for tail in tails]
            plain = all(ids == self.encode(text) for ids, text in zip(behind, _PROBES, strict=True))
            plain = plain and all(
                self.decode(ids) == text for ids, text in zip(behind, _PROBES, strict=True)
            )
            return ("", []) if plain else (anchor, base)
        return "", []

    @staticmethod
    def _pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
        """Pattern that matches control tokens in a text. The tags of spa's own format are excluded,
        even if the vocabulary has them."""
        patterns = [
            re.escape(text) for text in texts if len(text) > 1 and not FORMAT.fullmatch(text)
        ]
        # Sort by length, longest first, because one token's text may begin with another's.
        return re.compile("|".join(sorted(patterns, key=len, reverse=True))) if patterns else None


def encode_with_ends(tokenizer: Any, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokenize a text. Returns the token ids, and the position in the text at which each token
    ends; both int64 [L]."""
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ends = [end for _, end in encoded["offset_mapping"]]
        return np.asarray(encoded["input_ids"], dtype=np.int64), np.asarray(ends, dtype=np.int64)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    # Slow tokenizers return no offsets, so each end is the length of a decoded prefix.
    ends = [len(tokenizer.decode(ids[: i + 1], skip_special_tokens=False)) for i in range(len(ids))]
    return np.asarray(ids, dtype=np.int64), np.asarray(ends, dtype=np.int64)

"""Exact evaluation of arithmetic expressions that a model wrote, by a small parser.

The grammar has integers of at most nine digits, `+ - * /` (also `× ÷ −`), parentheses, and signs
before a factor. As in Python, numbers have no leading zeros. Any other text is rejected. Length and
nesting depth are limited, so that no input can make the parser slow.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_LENGTH = 300
MAX_DEPTH = 30
# Matches `0`, `12` and `(`, but neither `007` nor an integer of ten digits.
_TOKEN = re.compile(r"\s*((?:0+|[1-9][0-9]{0,8})(?![0-9])|[-+*/()])")
_ALIASES = str.maketrans({"×": "*", "÷": "/", "−": "-"})


@dataclass(frozen=True, slots=True)
class Expression:
    """A well-formed expression.

    `value` is the exact result, or None if the expression divides by zero. `numbers` has the
    integers of the expression in the order written.
    """

    value: Fraction | None
    numbers: tuple[int, ...]


def parse_expression(text: str) -> Expression | None:
    """Parse an expression; None if `text` is not an expression or exceeds a limit. Never raises."""
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        return None
    tokens = _tokens(text.translate(_ALIASES).strip())
    if not tokens:
        return None
    parser = _Parser(tokens)
    try:
        value = parser.total(0)
    except _NotArithmetic:
        return None
    numbers = tuple(int(token) for token in tokens if token.isdigit())
    # Text after a complete expression (`1 2`, `1)`) makes the whole text invalid.
    return Expression(value, numbers) if parser.place == len(tokens) else None


def _tokens(text: str) -> list[str] | None:
    tokens = []
    place = 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            return None
        tokens.append(match.group(1))
        place = match.end()
    return tokens


class _NotArithmetic(Exception):
    pass


class _Parser:
    """A recursive-descent parser. Its methods return None as the value of a part that divides by
    zero."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.place = 0

    def _take(self, wanted: str) -> str | None:
        """Consume and return the next token if it is one of the characters of `wanted`; else return
        None."""
        if self.place < len(self.tokens) and self.tokens[self.place] in wanted:
            self.place += 1
            return self.tokens[self.place - 1]
        return None

    def total(self, depth: int) -> Fraction | None:
        value = self._product(depth)
        while sign := self._take("+-"):
            other = self._product(depth)
            if value is not None:
                value = None if other is None else value + other if sign == "+" else value - other
        return value

    def _product(self, depth: int) -> Fraction | None:
        value = self._factor(depth)
        while sign := self._take("*/"):
            other = self._factor(depth)
            if value is None or other is None or (sign == "/" and other == 0):
                value = None
            else:
                value = value * other if sign == "*" else value / other
        return value

    def _factor(self, depth: int) -> Fraction | None:
        # Only signs and brackets nest, so checking the depth here is enough.
        if depth > MAX_DEPTH or self.place >= len(self.tokens):
            raise _NotArithmetic
        if sign := self._take("-+"):
            value = self._factor(depth + 1)
            return -value if value is not None and sign == "-" else value
        if self._take("("):
            value = self.total(depth + 1)
            if not self._take(")"):
                raise _NotArithmetic
            return value
        token = self.tokens[self.place]
        if not token.isdigit():
            raise _NotArithmetic
        self.place += 1
        return Fraction(int(token))

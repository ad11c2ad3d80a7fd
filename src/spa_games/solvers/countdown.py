"""Exact search for an expression that uses every number once and has a given value."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, product

MAX_NUMBERS = 6
"""Maximum number of numbers for the exhaustive search. Six numbers already give a few million
expressions in the worst case."""

# Values are exact fractions, because with floats 1 / 49 * 49 is less than 1.
_Term = tuple[Fraction, str]


def sign_solution(numbers: Sequence[int], target: int) -> str | None:
    """Put a plus or minus sign before each number, in the given order, so that the sum is `target`.
    Returns the expression, or None if no signs reach the target."""
    for signs in product((1, -1), repeat=len(numbers)):
        if sum(sign * number for sign, number in zip(signs, numbers, strict=True)) == target:
            pieces = [
                f"{'+' if sign > 0 else '-'} {number}"
                for sign, number in zip(signs, numbers, strict=True)
            ]
            # `+ 3 - 2` -> `3 - 2`, `- 3 + 2` -> `-3 + 2`
            text = " ".join(pieces)
            return text[2:] if text.startswith("+ ") else "-" + text[2:]
    return None


def solve(numbers: Sequence[int], target: int) -> str | None:
    """Find an expression that uses all `numbers` and has the value `target`. It has only plus and
    minus signs if they suffice, else also `* /` and parentheses.

    Returns None if there is no such expression. Raises ValueError for more than `MAX_NUMBERS`
    numbers that signs alone do not solve.
    """
    solution = sign_solution(numbers, target)
    if solution is not None:
        return solution
    if len(numbers) > MAX_NUMBERS:
        raise ValueError(
            f"The Countdown solver takes at most {MAX_NUMBERS} numbers, got {len(numbers)}"
        )
    text = _search([(Fraction(number), str(number)) for number in numbers], Fraction(target), set())
    # `_combine` puts parentheses around every result, and the outermost pair is redundant.
    return (
        None
        if text is None
        else text.removeprefix("(").removesuffix(")")
        if len(numbers) > 1
        else text
    )


def _search(terms: list[_Term], target: Fraction, seen: set[tuple[Fraction, ...]]) -> str | None:
    """Combine pairs of terms in every way until one term is left. Return its text if its value is
    `target`, else None.

    `seen` has the sorted values of all term lists tried so far, and is updated in place.
    """
    if len(terms) == 1:
        return terms[0][1] if terms[0][0] == target else None
    # The order of the terms makes no difference to the reachable values, so sort them in the key.
    key = tuple(sorted(value for value, _ in terms))
    if key in seen:
        return None
    seen.add(key)
    for first, second in combinations(range(len(terms)), 2):
        rest = [term for place, term in enumerate(terms) if place not in (first, second)]
        for combined in _combine(terms[first], terms[second]):
            solution = _search([*rest, combined], target, seen)
            if solution is not None:
                return solution
    return None


def _combine(a: _Term, b: _Term) -> list[_Term]:
    out = [
        (a[0] + b[0], f"({a[1]} + {b[1]})"),
        (a[0] * b[0], f"({a[1]} * {b[1]})"),
        (a[0] - b[0], f"({a[1]} - {b[1]})"),
        (b[0] - a[0], f"({b[1]} - {a[1]})"),
    ]
    if b[0]:
        out.append((a[0] / b[0], f"({a[1]} / {b[1]})"))
    if a[0]:
        out.append((b[0] / a[0], f"({b[1]} / {a[1]})"))
    return out

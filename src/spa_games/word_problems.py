"""Generator of arithmetic word problems with integer answers. MetamathQA uses it by default, so
that it works offline."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from spa.envs.options import uniforms


@dataclass(frozen=True, slots=True)
class Problem:
    """A question and its answer as text."""

    question: str
    answer: str


_PEOPLE = (
    "Ada",
    "Bela",
    "Chidi",
    "Dana",
    "Emil",
    "Farah",
    "Goran",
    "Hana",
    "Ivo",
    "Juno",
    "Kaya",
    "Liam",
    "Mira",
    "Noor",
)
_THINGS = (
    "apples",
    "beads",
    "books",
    "buttons",
    "cards",
    "candles",
    "coins",
    "eggs",
    "marbles",
    "pens",
    "shells",
    "stamps",
)
_PLACES = ("bakery", "book shop", "market", "garden centre", "toy shop", "workshop")

Pick = Callable[[int, int], int]  # Picks an integer from low to high, both included.


def generate_problem(rng: np.random.Generator) -> Problem:
    """Generate a problem of two or three steps from one of eight kinds. Answers are positive
    integers."""
    uniform = uniforms(rng, 16)

    def pick(low: int, high: int) -> int:
        return low + int(uniform() * (high - low + 1))

    def choose(words: tuple[str, ...]) -> str:
        return words[pick(0, len(words) - 1)]

    who = choose(_PEOPLE)
    other = choose(_PEOPLE)
    while other == who:
        other = choose(_PEOPLE)
    # All kinds take the same arguments, although some ignore the other person or the place.
    question, answer = _KINDS[pick(0, len(_KINDS) - 1)](
        pick, who, other, choose(_THINGS), choose(_PLACES)
    )
    return Problem(question, str(answer))


def _boxes(pick: Pick, who: str, other: str, things: str, place: str) -> tuple[str, int]:
    boxes = pick(3, 30)
    each = pick(4, 40)
    loose = pick(2, 60)
    return (
        f"{who} has {boxes} boxes with {each} {things} in each, and {loose} loose {things}. "
        f"How many {things} is that in all?"
    ), boxes * each + loose


def _giving(pick: Pick, who: str, other: str, things: str, place: str) -> tuple[str, int]:
    given = pick(5, 90)
    bought = pick(5, 90)
    # No one gives away more than they have.
    start = given + pick(10, 200)
    return (
        f"{who} owns {start} {things}. After giving {given} of them to {other} and buying {bought} new ones at the "
        f"{place}, how many {things} does {who} own?"
    ), start - given + bought


def _sharing(pick: Pick, who: str, other: str, things: str, place: str) -> tuple[str, int]:
    # The total is computed from the answer, so that the division leaves no remainder.
    friends = pick(3, 24)
    each = pick(3, 40)
    kept = pick(1, 50)
    return (
        f"{who} keeps {kept} of {friends * each + kept} {things} and shares the rest equally among {friends} friends. "
        f"How many {things} does each friend get?"
    ), each


def _prices(pick: Pick, who: str, other: str, things: str, place: str) -> tuple[str, int]:
    count = pick(3, 40)
    price = pick(2, 30)
    fee = pick(5, 80)
    return (
        f"At the {place} {who} buys {count} {things} for {price} dollars each and pays {fee} dollars for delivery. "
        "What is the bill in dollars?"
    ), count * price + fee


def _change(pick: Pick, who: str, other: str, things: str, place: str) -> tuple[str, int]:
    # The amount paid is computed from the change, so that the change is positive.
    count = pick(3, 30)
    price = pick(2, 25)
    left = pick(1, 90)
    return (
        f"{who} goes to the {place} with {count * price + left} dollars and buys {count} {things} at {price} dollars "
        "each. How many dollars are left?"
    ), left


def _twice(pick: Pick, who: str, other: str, things: str, place: str) -> tuple[str, int]:
    count = pick(5, 80)
    factor = pick(2, 6)
    more = pick(1, 60)
    return (
        f"{other} has {count} {things}. {who} has {factor} times as many, and {more} more. "
        f"How many {things} do the two have together?"
    ), count + factor * count + more


def _weeks(pick: Pick, who: str, other: str, things: str, place: str) -> tuple[str, int]:
    daily = pick(3, 25)
    weeks = pick(2, 9)
    sold = pick(1, 40)
    return (
        f"Every day of the week, {who} makes {daily} {things} for the {place}. After {weeks} weeks {sold} of them have "
        f"been sold. How many {things} are left?"
    ), daily * weeks * 7 - sold


def _rates(pick: Pick, who: str, other: str, things: str, place: str) -> tuple[str, int]:
    first = pick(4, 40)
    second = pick(4, 40)
    hours = pick(2, 12)
    return (
        f"{who} packs {first} {things} an hour and {other} packs {second} an hour. How many {things} do they pack "
        f"together in {hours} hours?"
    ), (first + second) * hours


# Changing the number or order of the kinds changes which problem a seed gives.
_KINDS = (_boxes, _giving, _sharing, _prices, _change, _twice, _weeks, _rates)

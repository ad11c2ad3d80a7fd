"""Do the figures of README and the result pages follow from benchmarks/results?

    python tools/claims.py

A claim is a piece of text, made in claim_texts/ from committed data, that a page must contain word for word. The
figures in it that come from the data are marked. On the pages of `PAGES` every number has to be such a figure, or part
of a name (`NAMES`); code, comments and targets of links are not read. Prints the claims that no page makes and the
numbers that no data give, and exits with 1 if there are any.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from claim_texts import every_claim
from claim_texts.figures import CLOSE, OPEN, Claim

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/does-it-help.md", "docs/results.md", "docs/results-smollm2.md")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[-+]?\d+)?")
NAMES = (
    r"([3-6])×\1",
    r"(?:above|below|includes) 0(?!\.?\d)",
    r"2-core CPU|0\.9M model|135M parameters",
    r"SmolLM2-135M|Qwen2\.5-0\.5B|H100|H200|Python 3\.11|Apache-2\.0",
    r"95 % (?=CI|t? ?intervals?|bootstrap)",
    r"Pass@[18]\b",
    r"\| seed 0 \| seed 1 \| seed 2 \||(?<!\| )[Ss]eed [0-2]\b(?!,)",
    r"[Ss]eeds (?:0, 1, 2|0, 1 and 2|1 and 2|0 to 2)\b",
    r"\[(\d{4})\](?=\(\S*/\1-)|\[(?:arXiv )?(\d{4}\.\d{5})\](?=\(https://arxiv\.org/abs/\2\))",
)
"""Numbers that are no figures: boards, models, seeds, the k of Pass@k, links that carry their
number."""
SKIPPED = re.compile(r"<!--.*?-->|^```.*?^```|`[^`\n]*`|(?<=\])\([^)\s]*\)", re.M | re.S)
OUTPUT = re.compile(r"<!-- result of .*?<!-- end of the result -->", re.S)


def missing(texts: dict[str, str], claims: Sequence[Claim]) -> list[str]:
    """The claims that their page does not make."""
    return [
        f"{page} does not say what the data say: {plain(claim)[:300]}"
        for page, claim in claims
        if plain(claim) not in texts[page]
    ]


def plain(claim: str) -> str:
    """A claim as the page prints it, without marks."""
    return claim.replace(OPEN, "").replace(CLOSE, "")


def without_data(page: str, text: str, claims: Sequence[Claim]) -> list[str]:
    """The numbers of a page that are neither a figure of a claim nor a name."""
    known = set[int]()
    for where, claim in claims:
        if where == page:
            known.update(figures(text, claim))
    for name in NAMES:
        for match in re.finditer(name, text, re.M):
            known.update(range(*match.span()))
    return [
        f"{page}:{text.count(chr(10), 0, start) + 1}: no data give {text[start:end]!r} in "
        f"{text[max(0, start - 40) : end + 20]!r}"
        for start, end in numbers(text)
        if not known.issuperset(range(start, end))
    ]


def figures(text: str, claim: str) -> Iterator[int]:
    """The places of a claim's marked figures, wherever the text contains the claim."""
    said = plain(claim)
    marked = list[int]()
    place = 0
    inside = False
    for letter in claim:
        if letter in (OPEN, CLOSE):
            inside = letter == OPEN
        else:
            marked += [place] * inside
            place += 1
    start = text.find(said)
    while start >= 0:
        yield from (start + place for place in marked)
        start = text.find(said, start + 1)


def numbers(text: str) -> list[tuple[int, int]]:
    """(start, end) of the numbers in what a page says: prose, tables and printed results."""
    outputs = [match.span() for match in OUTPUT.finditer(text)]
    hidden = [
        match.span()
        for match in SKIPPED.finditer(text)
        if not any(start <= match.start() and match.end() <= end for start, end in outputs)
    ]
    return [
        match.span()
        for match in NUMBER.finditer(text)
        if not any(start <= match.start() < end for start, end in hidden)
    ]


def main() -> int:
    """Check every claim and every number. Returns the exit status."""
    claims = every_claim()
    texts = {
        page: (ROOT / page).read_text(encoding="utf-8")
        for page in {*PAGES, *(page for page, _ in claims)}
    }
    problems = missing(texts, claims)
    for page in PAGES:
        found = without_data(page, texts[page], claims)
        amount = len(numbers(texts[page]))
        print(f"{page}: data or a name give {amount - len(found)} of {amount} numbers")
        problems += found
    print("\n".join([*problems, f"{len(claims)} claims"]))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

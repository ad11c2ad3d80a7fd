"""`make claims`: every number of README and the result pages follows from data, and a changed one is noticed."""

import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import claims  # noqa: E402 # pyright: ignore[reportMissingImports]
from claim_texts import every_claim  # noqa: E402 # pyright: ignore[reportMissingImports]

TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in claims.PAGES}


@pytest.fixture(scope="module")
def made() -> list[tuple[str, str]]:
    return [claim for claim in every_claim() if claim[0] in TEXTS]


def problems(page: str, text: str, made: list[tuple[str, str]]) -> list[str]:
    said = [claim for claim in made if claim[0] == page]
    return [*claims.missing({page: text}, said), *claims.without_data(page, text, said)]


@pytest.mark.parametrize("page", claims.PAGES)
def test_data_give_every_number_of_a_page(page: str, made: list[tuple[str, str]]):
    assert len(claims.numbers(TEXTS[page])) > 100
    assert problems(page, TEXTS[page], made) == []


@pytest.mark.parametrize("seed", range(5))
def test_changed_numbers_are_noticed(seed: int, made: list[tuple[str, str]]):
    rng = random.Random(seed)
    places = [(page, *span) for page, text in TEXTS.items() for span in claims.numbers(text)]
    noticed = 0
    for page, start, end in rng.sample(places, 20):
        text = TEXTS[page]
        digits = [place for place in range(start, end) if text[place].isdigit()]
        place = rng.choice(digits)
        other = rng.choice([digit for digit in "0123456789" if digit != text[place]])
        noticed += bool(problems(page, text[:place] + other + text[place + 1 :], made))
    assert noticed >= 19


def test_a_number_without_data_is_named():
    said = [("page.md", f"wins {claims.OPEN}94.7{claims.CLOSE} % of 256")]
    text = "On 4×4 it wins 94.7 % of 256 puzzles, and `--seeds 3` is code.\n"
    (problem,) = claims.without_data("page.md", text, said)
    assert problem.startswith("page.md:1: no data give '256'")
    assert claims.missing({"page.md": text.replace("94.7", "94.8")}, said)

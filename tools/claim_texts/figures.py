"""Read the committed data and write their figures, marked."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from results import read, read_lines

from spa.evaluation.passk import pass_at_k
from spa.evaluation.statistics import paired_by_puzzle, seeds_interval

ROOT = Path(__file__).parents[2]
SEEDS = (0, 1, 2)
OPEN = "\x02"
CLOSE = "\x03"
"""Marks around a figure that the data give."""
PAGE = "docs/does-it-help.md"
Claim = tuple[str, str]
"""A page, and the text that it must contain."""


def load(name: str) -> Any:
    """The content of a JSON file of a question (`search/make-smol.json`)."""
    question, _, file = name.partition("/")
    return read(question, file)


def bracket(interval: Mapping[str, float], digits: int = 0) -> str:
    """The ends of an interval of shares, in percent: `[31, 50]`."""
    return f"[{percent(interval['low'], digits)}, {percent(interval['high'], digits)}]"


def percent(share: float, digits: int = 1) -> str:
    """A share in percent, without a minus before a zero."""
    return figure(round(100 * share, digits) + 0.0, f".{digits}f")


def figure(value: float, form: str = ",.0f") -> str:
    """A number of the data, marked."""
    return f"{OPEN}{value:{form}}{CLOSE}"


def cell(interval: Mapping[str, float]) -> str:
    """A share and its interval in percent, with a decimal: `14.6 [11.3, 18.0]`."""
    return f"{percent(interval['mean'])} {bracket(interval, 1)}"


def fine_points(difference: Mapping[str, float]) -> str:
    """A difference of shares, with a decimal: `4.0 points [3.1, 5.0]`."""
    return f"{percent(difference['mean'])} points {bracket(difference, 1)}"


def row(difference: Mapping[str, float]) -> str:
    """A difference as a table prints it: `40 [31, 50]`."""
    return f"{percent(difference['mean'], 0)} {bracket(difference)}"


def points(difference: Mapping[str, float]) -> str:
    """A difference of shares: `40 points [31, 50]`."""
    return f"{percent(difference['mean'], 0)} points {bracket(difference)}"


def share(won: Mapping[str, float]) -> float:
    """The mean over puzzles."""
    return fmean(won.values())


def over_seeds(numbers: Iterable[float]) -> dict[str, float]:
    """The mean of one number per training, with its t interval."""
    return asdict(seeds_interval([[number] for number in numbers]))


def difference(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The mean difference over the puzzles that both have, with its 95 % bootstrap interval."""
    found = paired_by_puzzle([(first, second)], seed=0)
    assert found is not None, "the two evaluations share no puzzle"
    return asdict(found)


def groups(name: str) -> list[dict[str, Any]]:
    """The puzzles of an evaluation in their order."""
    question, _, file = name.partition("/")
    # The first line holds the settings.
    return [group for group in read_lines(question, f"{file}.groups.jsonl") if "attempts" in group]


def attempts(name: str) -> list[tuple[str, list[bool]]]:
    """The puzzles of an evaluation in their order, with the success of each attempt."""
    return [
        (group["puzzle_hash"], [attempt["success"] for attempt in group["attempts"]])
        for group in groups(name)
    ]


def outcomes(name: str, question: str = "search") -> dict[str, float]:
    """Puzzle -> share of its attempts that succeeded."""
    return {puzzle: fmean(won) for puzzle, won in attempts(f"{question}/{name}")}


def evaluation(name: str, question: str = "search") -> Any:
    """The one tag of an evaluation of written search."""
    (found,) = load(f"{question}/{name}.json")["tags"].values()
    return found


def shares_by_puzzle(entry: Mapping[str, Any]) -> dict[str, float]:
    """Puzzle -> share of its attempts that succeeded, of an evaluation of a planner."""
    return {name: fmean(won) for name, won in entry["puzzles"].items()}


def all_seeds() -> str:
    """The seeds 0, 1, 2, as a cell."""
    return ", ".join(map(figure, SEEDS))


def trained_on(name: str) -> str:
    """The examples that an SFT of a learned world has seen, marked."""
    steps = read_lines("learned-world", f"{name}.jsonl")
    return figure(sum(step["train/examples"] for step in steps))


def examples_of(name: str) -> float:
    """The examples that an SFT has seen."""
    steps = read_lines("search", f"{name}-sft.jsonl")
    return round(sum(step["train/rows"] for step in steps), -1)


def passed(name: str, k: int) -> float:
    """Pass@k of an evaluation, over its puzzles."""
    return fmean(float(pass_at_k(len(won), sum(won), k)) for _, won in attempts(name))


def counted(reference: Mapping[str, Any], policy: str) -> dict[str, float]:
    """Puzzle of a board -> success of a reference policy."""
    shares = [won / reference["samples"] for won in reference["wins"][policy]]
    return dict(zip(reference["puzzle_hashes"], shares, strict=True))


def sampled_and_greedy(name: str) -> str:
    """Pass@1 with its interval, two cells of a table."""
    return " | ".join(
        cell(found)
        for how in ("sampled", "greedy")
        for found in [evaluation(f"{name}-{how}")["pass@1"]]
    )


def change_row(before: str, after: str, change: Mapping[str, float]) -> str:
    """The end of a row: before, after, and the change in points."""
    return f"| {before} | {after} | {cell(change)} |"


def lead_over(arm: str, board: str = "") -> dict[str, float]:
    """Written search minus another arm, in Pass@1 over the seeds."""
    names = (
        (f"{one}_1600-{seed}{board}-sampled" for one in ("search_model", arm)) for seed in SEEDS
    )
    return over_seeds(difference(*map(outcomes, pair))["mean"] for pair in names)


def ppo_setting(name: str) -> str:
    """Learning rate and puzzles a step of a PPO training: `5e-6, 8 puzzles`."""
    steps = read_lines("search", f"{name}.jsonl")
    step = next(step for step in steps if "actor/lr" in step)
    rate = f"{step['actor/lr']:.0e}".replace("e-0", "e-")
    puzzles = step["train/FrozenLakeNoSlip/episodes"] / 8
    return f"{OPEN}{rate}{CLOSE}, {figure(puzzles)} puzzles"

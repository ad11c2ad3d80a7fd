"""Statistics of recorded episodes: endings, errors, success rates and their confidence intervals.

They come from the trajectory files of validations (`val`), in which every method of a comparison
plays the same puzzles.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from spa.evaluation.passk import outcomes
from spa.evaluation.statistics import Interval, paired_by_puzzle, rate_interval
from spa_report.reading import StageFolder, heads, last_validation
from spa_report.replay import prediction_wrong

ENDINGS = {
    "success": "reached the goal",
    "failure": "failed by a wrong action",
    "action_cap": "ran out of actions",
    "turn_cap": "ran out of turns",
    "context": "ran out of context",
    "error": "stopped with a technical error",
}
_HABITS = (
    ("idle", "actions", "of the actions changed nothing"),
    ("refused", "actions", "of the actions were refused"),
    ("malformed", "turns", "of the responses were malformed"),
    (
        "predicted_wrong",
        "predicted",
        "of the predicted next states were not exact",
    ),
)
"""Shares that a report mentions, as (count, total, text). Count and total name fields of
`Behaviour`. A share of 0 is omitted, except for wrong predictions."""
SEED = 20251015
"""Seed of the bootstrap, fixed so that a run always gives the same report."""


@dataclass(slots=True)
class Behaviour:
    """Counts over the episodes of one method.

    `malformed` counts turns with a malformed response, `refused` invalid actions, and `idle` valid
    actions that changed nothing. `predicted` counts turns whose predicted state can be checked.
    """

    endings: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    malformed: int = 0
    actions: int = 0
    refused: int = 0
    idle: int = 0
    predicted: int = 0
    predicted_wrong: int = 0

    @property
    def episodes(self) -> int:
        """Number of episodes counted."""
        return sum(self.endings.values())

    def share(self, name: str, of: str) -> float | None:
        """The count `name` divided by the count `of`, or None if the latter is 0."""
        return getattr(self, name) / getattr(self, of) if getattr(self, of) else None

    def merge(self, other: "Behaviour") -> None:
        """Add the counts of other episodes."""
        for part in fields(self):
            setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))

    def add(self, episode: dict[str, Any]) -> None:
        """Count one episode. Predicted states count only if the prompts ask for them."""
        self.endings[str(episode.get("stop", "error"))] += 1
        asked = episode.get("mode") != "base"
        for turn in episode["turns"]:
            self.turns += 1
            self.malformed += not turn["response"]["well_formed"]
            for info in turn.get("infos") or ():
                self.actions += 1
                self.refused += info.get("action_is_valid") is False
                # A refused action changes nothing either, but counts only as refused.
                self.idle += (
                    info.get("action_is_valid") is not False
                    and info.get("action_is_effective") is False
                )
            if not asked:
                continue
            prediction = prediction_wrong(turn)
            self.predicted += prediction is not None
            self.predicted_wrong += bool(prediction)


Wins = dict[int | None, dict[str, float]]
"""Success rates by training seed and puzzle: the fraction of the puzzle's episodes that
succeeded."""


def behaviour_and_wins(
    stages: Sequence[StageFolder], step: int | None = None
) -> tuple[Behaviour, Wins]:
    """Count behaviour in the last validation of each stage, and compute the success rate of every
    puzzle. `stages` has one stage per seed. With `step`, later validations are ignored."""
    behaviour = Behaviour()
    wins: Wins = {}
    for stage in stages:
        if file := last_validation(stage, step):
            counts, of_puzzle = validation(file.path)
            behaviour.merge(counts)
            if of_puzzle:
                wins[stage.seed] = of_puzzle
    return behaviour, wins


def validation(path: Path) -> tuple[Behaviour, dict[str, float]]:
    """Count behaviour in the episodes of one file, and compute the success rate of every puzzle.
    Callers must not modify the result, because it is cached."""
    # Size and time are parts of the cache key, so a file that grows is counted again.
    status = path.stat()
    return _validation(path, status.st_size, status.st_mtime_ns)


# Cached, because the viewer builds its report again whenever the run adds a file, while all other
# files stay the same.
@lru_cache(maxsize=4096)
def _validation(path: Path, size: int, changed: int) -> tuple[Behaviour, dict[str, float]]:
    behaviour = Behaviour()
    episodes = [head for _, head in heads(path) if head]
    for episode in episodes:
        behaviour.add(episode)
    return behaviour, {puzzle: won / played for puzzle, (played, won) in outcomes(episodes).items()}


def rate(wins: Wins) -> Interval | None:
    """Pass@1 with its interval over puzzles, or over seeds if there are three or more. None without
    episodes."""
    return _rate(tuple(tuple(puzzles.values()) for puzzles in wins.values())) if wins else None


@lru_cache(maxsize=4096)
def _rate(values: tuple[tuple[float, ...], ...]) -> Interval:
    return rate_interval(values, seed=SEED)


def difference(first: Wins, second: Wins) -> Interval | None:
    """Pass@1 of `first` minus Pass@1 of `second` on the puzzles that both played. None if they
    share no puzzle."""
    return paired_by_puzzle(paired(first, second), seed=SEED)


def paired(first: Wins, second: Wins) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Pair the results of two methods by training seed, for the seeds in which they share
    puzzles."""
    ours, theirs = _by_seed(first), _by_seed(second)
    pairs = [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    # Two runs with one seed each are paired even if the seeds differ.
    if len(first) == len(second) == 1:
        pairs = [(next(iter(first.values())), next(iter(second.values())))]
    return [pair for pair in pairs if pair[0].keys() & pair[1].keys()]


def _by_seed(wins: Wins) -> dict[int, dict[str, float]]:
    """Results by training seed. A run without seed folders counts as seed 0."""
    alone = {0: wins[None]} if None in wins else {}
    return alone | {seed: puzzles for seed, puzzles in wins.items() if seed is not None}


def describe_failures(name: str, behaviour: Behaviour) -> str:
    """Describe the failures of a method in one to three sentences."""
    broken = behaviour.endings["error"]  # technical errors do not count as attempts
    total = behaviour.episodes - broken
    if not behaviour.episodes:
        return ""
    lost = total - behaviour.endings["success"]
    causes = [
        (count, ending)
        for ending, count in behaviour.endings.items()
        if ending not in ("success", "error")
    ]
    parts = [
        f"{_share(count / total)} {ENDINGS.get(ending, ending)}"
        for count, ending in sorted(causes, reverse=True)
    ]
    text = (
        f"{name} failed in {_share(lost / total)} of its {total:,} episodes: {_and(parts)}."
        if parts
        else ""
    )
    if total and not lost:
        text = f"{name} reached the goal in every episode."
    if broken:
        text += (
            f" {broken:,} more {ENDINGS['error']}."
            if text
            else f"All {broken:,} episodes of {name} stopped with a technical error."
        )
    if not lost:
        return text
    shares = ((text, behaviour.share(name, of), name) for name, of, text in _HABITS)
    # Of the names in `_HABITS`, only `predicted_wrong` contains `_`. It is reported even if it is
    # 0.
    habits = [
        f"{_share(value)} {text}"
        for text, value, name in shares
        if value or (value == 0 and "_" in name)
    ]
    if habits:
        text += f" {_and(habits).capitalize() if habits[0][0].islower() else _and(habits)}."
    return text


def _share(value: float) -> str:
    if 0 < value < 0.01:
        return "under 1 %"
    return "over 99 %" if 0.99 < value < 1 else f"{100 * value:.0f} %"


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]

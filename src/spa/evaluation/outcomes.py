"""Compact records of an evaluation's episodes. Every metric of the report can be computed from
them, and they are small enough to store 64 attempts per puzzle."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from spa.formats.base import SearchScore
from spa.types import Episode, StopReason
from spa.worldmodel.accuracy import is_exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Counts of one attempt at a puzzle, which can be summed over attempts."""

    success: bool
    stop: str
    score: float  # rewards and penalties
    reward: float
    turns: int
    well_formed: int  # turns in the requested format
    cut_off: int  # turns that ended at the length limit
    actions: int  # executed
    invalid: int  # executed actions that the rules do not allow
    ineffective: int  # executed actions that changed nothing
    tokens: int | None  # number of sampled tokens; None for engines without token ids
    observed: int  # turns with an exact observation; 0 outside the world-model format
    predicted: int  # turns with an exact prediction
    # Number of well-formed turns whose next state equals the state, so that a copy of the state
    # would be an exact prediction. None in results of earlier versions.
    unchanged: int | None = None
    error: str = ""
    searches: tuple[SearchScore, ...] = ()  # scores of the searches that the turns wrote

    @property
    def played(self) -> bool:
        """False if an error of the engine or the environment ended the attempt. Metrics leave out
        such attempts."""
        return self.stop != StopReason.ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All attempts at one puzzle. `difficulty` is the smallest number of actions to the goal, or
    the number of clues of a Sudoku; None if unknown."""

    tag: str
    group: int
    puzzle_seed: int
    puzzle_hash: str
    difficulty: int | None
    attempts: tuple[Outcome, ...]

    @property
    def complete(self) -> bool:
        """True if every attempt was played to its end."""
        return all(attempt.played for attempt in self.attempts)

    @property
    def counts(self) -> tuple[int, int]:
        """Number of attempts without an error, and number of successes among them."""
        played = [attempt for attempt in self.attempts if attempt.played]
        return len(played), sum(attempt.success for attempt in played)

    def to_json(self) -> dict[str, Any]:
        """Convert the group to a JSON-ready dict; `from_json` restores an equal group."""
        data = asdict(self)
        for attempt in data["attempts"]:
            # Most formats write no search; leaving the empty tuple out keeps the lines of a result
            # short.
            if not attempt["searches"]:
                del attempt["searches"]
            for score in attempt.get("searches", ()):
                if not score["kinds"]:
                    del score["kinds"]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Group":
        """Restore a group from `to_json`. Raises TypeError or KeyError for any other input."""
        attempts = [
            Outcome(
                **{
                    **attempt,
                    "searches": tuple(SearchScore(**each) for each in attempt.get("searches", ())),
                }
            )
            for attempt in data["attempts"]
        ]
        return cls(**{**data, "attempts": tuple(attempts)})


def outcome_of(episode: Episode, searches: Sequence[SearchScore] = ()) -> Outcome:
    """Count an episode's results. `searches` are the scores of the searches that it wrote."""
    infos = [info for turn in episode.turns for info in turn.infos]
    # The states of a malformed response count as wrong, even if they could be parsed.
    responses = [(turn, turn.response) for turn in episode.turns if turn.response.well_formed]
    return Outcome(
        success=episode.success,
        stop=episode.stop.value,
        # Round, so that the JSON is short and the same on machines whose sums differ in the last
        # bits.
        score=round(episode.score, 6),
        reward=round(sum(turn.reward for turn in episode.turns), 6),
        turns=len(episode.turns),
        well_formed=len(responses),
        cut_off=sum(turn.finish_reason == "length" for turn in episode.turns),
        actions=len(infos),
        invalid=sum(not info.get("action_is_valid") for info in infos),
        ineffective=sum(not info.get("action_is_effective") for info in infos),
        tokens=None if episode.sampled is None else int(episode.sampled.sum()),
        observed=sum(is_exact(response.observation, turn.target) for turn, response in responses),
        predicted=sum(
            is_exact(response.prediction, turn.next_target) for turn, response in responses
        ),
        unchanged=sum(is_exact(turn.target, turn.next_target) for turn, _ in responses),
        error=episode.error,
        searches=tuple(searches),
    )


def group_of(
    episodes: Sequence[Episode],
    difficulty: int | None,
    *,
    searches: Callable[[Episode], Sequence[SearchScore]] = lambda episode: (),
) -> Group:
    """Collect the attempts at one puzzle, in the order of the group's members. The function
    `searches` returns the scores of an episode's searches."""
    first = episodes[0]
    return Group(
        tag=first.tag,
        group=first.group,
        puzzle_seed=first.puzzle_seed,
        puzzle_hash=first.puzzle_hash,
        difficulty=difficulty,
        attempts=tuple(
            outcome_of(episode, searches(episode))
            for episode in sorted(episodes, key=lambda episode: episode.member)
        ),
    )

"""World-model accuracy: compare observations with the shown state, and predictions with the next
state. Also rewards accurate responses during PPO (after VAGEN, arXiv 2510.16907).

States are text, so no judge is needed. They are compared as a whole, unit by unit, and on the units
that changed. Copying the shown state gets most units right, so only the changed units distinguish a
world model from a copy.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from spa.formats.registry import format_of
from spa.types import Episode, Metrics, StopReason, Turn

# (1,2) and ( 0, 3 ) are cells, each of which is one unit. (3) is not a cell.
_CELL = r"\(\s*-?\d+(?:\s*,\s*-?\d+)+\s*\)"
# Units of a sentence are cells, numbers, words and single signs. Units of a grid line are cells and
# single characters or, between blanks, whole numbers.
_SENTENCE_UNIT = re.compile(rf"{_CELL}|\d+(?:\.\d+)?|[^\W\d_]+|[^\w\s]|_")
_GRID_UNIT = re.compile(rf"{_CELL}|\S")
_SPACED_UNIT = re.compile(rf"{_CELL}|\d+|\S")
# "Player" makes a line a sentence; "OOX" and single letters are rows of a grid.
_LETTERS = re.compile(r"[^\W\d_]{2,}")


def is_exact(said: str | None, truth: str) -> bool:
    """Return whether a state equals the true text, apart from surrounding white space; False if it
    is missing."""
    return said is not None and said.strip() == truth.strip()


def state_units(text: str) -> list[str]:
    """Split a state into the units of comparison: a cell like (1,2), a word, a number, or one
    character of a grid.

    A line that is not a sentence (`is_sentence`) is a row of a grid. It is split into characters
    or, if it has blanks, into numbers and other characters. White space separates units and never
    counts.

    Example: state_units("#_P\\nPlayer at (0,2)") == ["#", "_", "P", "Player", "at", "(0,2)"]
    """
    # "( 1, 2 )" and "(1,2)" are the same unit.
    return [
        "".join(match[0].split()) for line in text.splitlines() for match in _line_matches(line)
    ]


def is_sentence(line: str) -> bool:
    """Return whether a line of a state has a word of two or more letters, one of them lower
    case."""
    return any(letters != letters.upper() for letters in _LETTERS.findall(line))


def _line_matches(line: str) -> Iterator[re.Match[str]]:
    if is_sentence(line):
        return _SENTENCE_UNIT.finditer(line)
    return (_SPACED_UNIT if " " in line.strip() else _GRID_UNIT).finditer(line)


Place = tuple[int, int]
"""Line number and index of a unit within the line. With such positions, one missing unit shifts
only the rest of its own line."""


def placed_units(text: str) -> dict[Place, tuple[str, int, int]]:
    """Return the units of a state by position, each with its start and end in `text`. White space
    around the state is ignored."""
    units_at: dict[Place, tuple[str, int, int]] = {}
    # Start and end are offsets in `text`, including white space before the state.
    start = len(text) - len(text.lstrip())
    for row, line in enumerate(text.strip().splitlines(keepends=True)):
        for column, match in enumerate(_line_matches(line)):
            units_at[row, column] = (
                "".join(match[0].split()),
                start + match.start(),
                start + match.end(),
            )
        start += len(line)
    return units_at


def _grid(text: str) -> dict[Place, str]:
    return {place: unit for place, (unit, _, _) in placed_units(text).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateScore:
    """Comparison of a predicted state with the true one, in counts, so that scores can be summed
    over turns."""

    exact: bool  # equal text, apart from surrounding white space
    units: int  # positions that exist in the truth or in the prediction
    units_right: int
    changed: int  # positions where the truth differs from the state before
    changed_predicted: int  # positions where the prediction differs from the state before
    changed_right: int  # changed positions where the prediction is correct

    @property
    def unit_accuracy(self) -> float:
        """Share of positions that are correct."""
        return _ratio(self.units_right, self.units)

    @property
    def changed_precision(self) -> float:
        """Share of the predicted changes that are correct."""
        return _ratio(self.changed_right, self.changed_predicted)

    @property
    def changed_recall(self) -> float:
        """Share of the true changes that were predicted."""
        return _ratio(self.changed_right, self.changed)

    @property
    def changed_f1(self) -> float:
        """Harmonic mean of `changed_precision` and `changed_recall`."""
        return _ratio(2 * self.changed_right, self.changed + self.changed_predicted)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def score_state(predicted: str | None, truth: str, before: str | None) -> StateScore:
    """Compare a predicted state (None if missing) with the true one, and compare their changes from
    the state `before`.

    With `before=None`, nothing counts as changed. A position (see `Place`) that exists in only one
    of two texts counts as different.
    """
    # Comparing by line and position lets a missing character affect only its own line.
    true_units = _grid(truth)
    units = _grid(predicted or "")
    places = true_units.keys() | units.keys()
    changed: set[tuple[int, int]] = set()
    moved: set[tuple[int, int]] = set()
    # Changes are counted separately, because a copy of the state `before` predicts no change.
    if before is not None:
        old = _grid(before)
        changed = {
            place
            for place in true_units.keys() | old.keys()
            if true_units.get(place) != old.get(place)
        }
        if predicted is not None:
            moved = {
                place for place in units.keys() | old.keys() if units.get(place) != old.get(place)
            }
    return StateScore(
        exact=is_exact(predicted, truth),
        units=len(places),
        units_right=sum(true_units.get(place) == units.get(place) for place in places),
        changed=len(changed),
        changed_predicted=len(moved),
        # A predicted change counts only if the new unit is right, too.
        changed_right=sum(true_units.get(place) == units.get(place) for place in changed & moved),
    )


def world_model_metrics(episodes: Sequence[Episode]) -> Metrics:
    """Compute the world-model accuracy over the turns of the episodes, as metrics under `wm/`.

    The denominator is the number of turns of mode "add_worldmodel" in episodes without error.
    Malformed turns count as wrong. A prediction is compared with the state to which the model's own
    answer led.

    * `wm/turns`: the denominator. If it is 0, it is the only key.
    * `wm/format_rate`: share of well-formed turns.
    * `wm/obs_exact`, `wm/prediction_em`: share of turns whose observation or prediction is the true
      text.
    * `wm/pred_unit_acc`: share of units that are predicted correctly, over all turns.
    * `wm/changed_acc`, `wm/changed_f1`: recall and F1 of the changed units, over all turns; 0 if
      nothing ever changed.
    * `wm/copy_exact`: score of a copy of the shown state on `wm/prediction_em`, that is, the share of
      turns that are well-formed and do not change the state.

    If any of the episodes has responses without predictions, only the first three keys are present.
    """
    played = [
        episode
        for episode in episodes
        if episode.mode == "add_worldmodel" and episode.stop is not StopReason.ERROR
    ]
    turns = [turn for episode in played for turn in episode.turns]
    if not turns:
        return {"wm/turns": 0.0}
    metrics = {
        "wm/turns": float(len(turns)),
        "wm/format_rate": _mean(turn.response.well_formed for turn in turns),
        "wm/obs_exact": _mean(
            is_exact(_if_well_formed(turn, turn.response.observation), turn.target)
            for turn in turns
        ),
    }
    scores = [
        score_state(_if_well_formed(turn, turn.response.prediction), turn.next_target, turn.target)
        for turn in turns
    ]
    total = total_score(scores)
    metrics |= {
        "wm/prediction_em": _mean(score.exact for score in scores),
        "wm/pred_unit_acc": total.unit_accuracy,
        "wm/changed_acc": total.changed_recall,
        "wm/changed_f1": total.changed_f1,
        # The copy baseline, which `wm/prediction_em` has to beat.
        "wm/copy_exact": _mean(
            turn.response.well_formed and is_exact(turn.target, turn.next_target) for turn in turns
        ),
    }
    for name in {episode.response_format for episode in played}:
        metrics = format_of(name).measured(metrics)
    return metrics


def _if_well_formed(turn: Turn, part: str | None) -> str | None:
    return part if turn.response.well_formed else None


def _mean(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / len(values)


def total_score(scores: Sequence[StateScore]) -> StateScore:
    """Add up the counts of several scores; `exact` is True if all of them are exact."""
    return StateScore(
        exact=all(score.exact for score in scores),
        units=sum(score.units for score in scores),
        units_right=sum(score.units_right for score in scores),
        changed=sum(score.changed for score in scores),
        changed_predicted=sum(score.changed_predicted for score in scores),
        changed_right=sum(score.changed_right for score in scores),
    )


def prediction_score(f1: float, within: float | None) -> float:
    """Return the score of a prediction, given the F1 of the changed units.

    This is F1 itself, or with `within`, 1 if the distance 1 - F1 is below `within`, else 0 (RWML,
    arXiv 2602.05842). The embedding distance of RWML itself does not separate boards that differ in
    one cell.
    """
    return f1 if within is None else float(f1 > 1 - within)


def with_world_model_reward(
    episodes: Sequence[Episode],
    *,
    observation: float,
    prediction: float,
    within: float | None = None,
) -> list[Episode]:
    """Add `observation * S(observation, state) + prediction * S(prediction, next state)` to the
    reward of every well-formed turn of the episodes.

    S of an observation is the share of its units that are correct. S of a prediction is the F1 of
    the changed units (`prediction_score` with `within`). It is 0 if no change is predicted
    correctly, so neither copying the shown state nor a turn without effect is rewarded. Turns that
    are not in the world-model format get no reward.
    """
    if not observation and not prediction:
        return list(episodes)

    def rewarded(turn: Turn) -> Turn:
        response = turn.response
        if not response.well_formed or response.observation is None:
            return turn
        # An observation describes a single state, so all its units count.
        seen = score_state(response.observation, turn.target, None).unit_accuracy
        # A prediction is scored on the changed units only, because copying the other units is easy.
        foreseen = score_state(response.prediction, turn.next_target, turn.target).changed_f1
        paid = observation * seen + prediction * prediction_score(foreseen, within)
        return replace(turn, reward=turn.reward + paid)

    return [
        replace(episode, turns=tuple(rewarded(turn) for turn in episode.turns))
        for episode in episodes
    ]

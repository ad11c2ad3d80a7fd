"""Scores of predictions against the true next states, with the baselines needed to interpret
them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from spa.evaluation.aggregate import DIGITS, interval_json
from spa.evaluation.statistics import rate_interval
from spa.worldmodel.accuracy import StateScore, is_exact, score_state, total_score
from spa_measurements.entities import Agreement, entity_scores, named


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One query of the model: the state that it was shown, its response, and the state to which its
    answer led.

    `observation` and `prediction` are None if the response is malformed. `ceiling` is the
    probability of the most likely next state under the same answer, which is 1 in a deterministic
    game.
    """

    tag: str
    puzzle: str
    state: str
    next_state: str
    observation: str | None
    prediction: str | None
    ceiling: float = 1.0

    @property
    def changed(self) -> bool:
        """True if the true next state differs from the state shown."""
        return not is_exact(self.state, self.next_state)


def prediction_report(
    asked: Sequence[Asked], legend: Mapping[str, str], *, seed: int = 0
) -> dict[str, Any]:
    """Compute all accuracy metrics of one environment tag, as JSON-ready values.

    A malformed response counts as wrong. `observation_exact`, `prediction_exact` (also of the
    baselines) and `ceiling` give every puzzle the same weight. Other shares give every question the
    same weight. `cell_accuracy` and the scores of changed cells are pooled over all cells.
    Intervals are bootstrapped over puzzles. `baselines.copy` predicts that nothing changes.
    `baselines.other_state` predicts the next state of another question.
    """
    truths = [(a.next_state, a.state) for a in asked]
    report: dict[str, Any] = {
        "transitions": len(asked),
        "puzzles": len({a.puzzle for a in asked}),
        "nothing_changed": _share(not a.changed for a in asked),
        "format_rate": _share(a.prediction is not None for a in asked),
        "observation_exact": _by_puzzle(
            asked, [is_exact(a.observation, a.state) for a in asked], seed
        ),
        "prediction_exact": _by_puzzle(
            asked, [is_exact(a.prediction, a.next_state) for a in asked], seed
        ),
        # Copying the state is always wrong where something changed, so this share tells a world
        # model from a model that copies.
        "prediction_exact_where_changed": _share(
            is_exact(a.prediction, a.next_state) for a in asked if a.changed
        ),
        **_cells([score_state(a.prediction, a.next_state, a.state) for a in asked]),
        "entities": {
            name: {key: _rounded(value) for key, value in asdict(score).items()}
            for name, score in named(
                entity_scores((a.prediction, a.next_state, a.state) for a in asked), legend
            ).items()
        },
    }
    # Even a perfect model cannot predict random outcomes correctly more often than this.
    if any(a.ceiling < 1 for a in asked):
        report["ceiling"] = _mean_by_puzzle(asked, [a.ceiling for a in asked])
    # The (entities, symbol) pairs that count as consistent are learned from the true states before
    # and after the actions.
    agreement = Agreement.learn(text for pair in truths for text in pair)
    said = [a.prediction for a in asked if a.prediction is not None]
    if agreement is not None and said:
        report["drawing_agrees"] = _share(agreement.holds(text) for text in said)
    report["baselines"] = {
        # Malformed responses also count as wrong for the copy baseline. Otherwise it would be right
        # whenever a malformed response has no action and so changes nothing.
        "copy": _baseline(asked, [None if a.prediction is None else a.state for a in asked]),
        # A cyclic shift gives every question the next state of another one, without random numbers.
        "other_state": _baseline(
            asked, [truths[(i + 1) % len(truths)][0] for i in range(len(truths))]
        ),
    }
    return report


def _baseline(asked: Sequence[Asked], said: Sequence[str | None]) -> dict[str, Any]:
    scores = [score_state(text, a.next_state, a.state) for text, a in zip(said, asked, strict=True)]
    exact = _mean_by_puzzle(asked, [score.exact for score in scores])
    return {"prediction_exact": exact, **_cells(scores)}


def _cells(scores: Sequence[StateScore]) -> dict[str, Any]:
    total = total_score(scores)
    return {
        "cell_accuracy": _rounded(total.unit_accuracy),
        "changed_cell_precision": _rounded(total.changed_precision),
        "changed_cell_recall": _rounded(total.changed_recall),
        "changed_cell_f1": _rounded(total.changed_f1),
    }


def rollout_report(
    chains: Sequence[Sequence[tuple[bool, bool]]], steps: int
) -> list[dict[str, Any]]:
    """Compute the accuracy of the model's open-loop rollouts after 1, 2, ... steps, as JSON-ready
    values.

    A chain is one rollout. For each step it has a pair: whether the prediction is correct, and
    whether the true state equals the first state. Both are False from a malformed response on. A
    chain is shorter than `steps` if the game ended. `copy_exact` is the score of a model that
    repeats the first state.
    """
    out = []
    for step in range(steps):
        # A rollout ends when its game ends, so later steps average over fewer rollouts.
        alive = [chain[step] for chain in chains if len(chain) > step]
        if not alive:
            break
        right, same = np.array(alive, dtype=float).T
        out.append(
            {
                "step": step + 1,
                "prediction_exact": interval_json(rate_interval([right], seed=0)),
                "copy_exact": _rounded(float(same.mean())),
            }
        )
    return out


def _by_puzzle(asked: Sequence[Asked], right: Sequence[bool], seed: int) -> dict[str, float | int]:
    """Return the share of correct answers, with an interval over puzzles. An interval over
    questions would be too narrow, because questions about the same puzzle are correlated."""
    return interval_json(rate_interval([_puzzle_means(asked, right)], seed=seed))


def _mean_by_puzzle(asked: Sequence[Asked], values: Sequence[float]) -> float:
    return _rounded(float(np.mean(_puzzle_means(asked, values))))


def _puzzle_means(asked: Sequence[Asked], values: Sequence[float]) -> list[float]:
    puzzles: dict[str, list[float]] = {}
    for question, value in zip(asked, values, strict=True):
        puzzles.setdefault(question.puzzle, []).append(value)
    return [float(np.mean(own)) for own in puzzles.values()]


def _share(flags: Any) -> float | None:
    values = list(flags)
    return _rounded(sum(values) / len(values)) if values else None


def _rounded(value: Any) -> Any:
    return round(value, DIGITS) if isinstance(value, float) else value

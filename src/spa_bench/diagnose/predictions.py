"""Compare the predicted states of rollouts with the true states. Measures how often predictions are
correct, and how accuracy falls with the number of actions ahead."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spa.formats.blocks import split_actions
from spa.worldmodel.accuracy import score_state, total_score
from spa_bench.diagnose.rollouts import Rollout

_MOST = 1000  # Maximum number of actions that are counted in an answer.


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A state that a response predicts. `before` and `after` are the true states before and after
    the turn, or None if unknown."""

    turn: int  # from 0
    # Number of executed actions, or of the actions in the answer if that is unknown. None without
    # an answer.
    actions: int | None
    text: str
    before: str | None
    after: str | None
    right: bool | None  # whether it equals the true next state; None if that is unknown


def predictions(rollout: Rollout) -> Iterator[Prediction]:
    """Yield the predictions of a rollout in the order of its responses."""
    for turn, place, response in _turns(rollout):
        if text := inside(response, "prediction"):
            # The prediction of turn t is about state t + 1, so both states must be recorded.
            known = turn + 1 < len(rollout.states)
            yield Prediction(
                turn=turn,
                actions=_count_actions(rollout, turn, response),
                text=text,
                before=rollout.states[turn] if known else None,
                after=rollout.states[turn + 1] if known else None,
                right=_right(rollout, text, state=turn + 1, message=place + 1),
            )


def _turns(rollout: Rollout) -> Iterator[tuple[int, int, str]]:
    """Yield (turn from 0, index in the chat, text) for each response."""
    places = (index for index, (role, _) in enumerate(rollout.chat) if role == "assistant")
    return ((turn, place, rollout.chat[place][1]) for turn, place in enumerate(places))


def _right(rollout: Rollout, text: str, *, state: int, message: int) -> bool | None:
    """Return whether a text equals the recorded state with the index `state`, apart from white
    space. Without recorded states, return whether it occurs in the message with the index
    `message`. Return None if neither exists."""
    if state < len(rollout.states):
        return words(text) == words(rollout.states[state])
    if rollout.states or rollout.cut or not 0 <= message < len(rollout.chat):
        return None
    # Search the message, because it shows the state among other text.
    return words(text) in words(rollout.chat[message][1])


def _count_actions(rollout: Rollout, turn: int, response: str) -> int | None:
    # Recorded actions take precedence, because an answer may name actions that were not executed.
    if turn < len(rollout.actions):
        return len(rollout.actions[turn])
    answer = inside(response, "answer")
    return len(split_actions(answer, max_actions=_MOST)) if answer else None


def world_model(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Count the observations and predictions that can be judged, and the correct ones
    (`observation_right`, `prediction_right`).

    They are compared with the recorded true states. If there are none, an observation must occur in
    the message before the response, and a prediction in the message after it. `copied` counts the
    judged predictions that repeat the observation.
    """
    counts: Counter[str] = Counter()
    for rollout in rollouts:
        for turn, place, response in _turns(rollout):
            said, told = (inside(response, tag) for tag in ("observation", "prediction"))
            # Without recorded states, the message before the response judges the observation, and
            # the message after it the prediction.
            for name, text, state, message in (
                ("observation", said, turn, place - 1),
                ("prediction", told, turn + 1, place + 1),
            ):
                right = _right(rollout, text, state=state, message=message) if text else None
                if right is not None:
                    counts[name] += 1
                    counts[f"{name}_right"] += right
                    if name == "prediction":
                        counts["copied"] += bool(said and words(said) == words(text))
    return dict(counts)


def drift(rollouts: Sequence[Rollout]) -> dict[str, list[dict[str, Any]]]:
    """Return the accuracy of predictions by the number of actions k between the two states
    (`by_actions`), and by turn (`by_turn`).

    Each row has `at` (k, or the turn from 1), `predictions` (their number) and `right` (the number
    of correct ones). If true states are known, a row also has these values:

    * `with_states`: the number of predictions with a true state before and after.
    * `cells_wrong`: the share of cells and words that differ from the true state, as in
      `spa.worldmodel.accuracy`.
    * `copy_right`, `copy_cells_wrong`: the same as `right` and `cells_wrong`, for copies of the
      state before the actions.
    """
    held = [said for rollout in rollouts for said in predictions(rollout) if said.right is not None]
    return {
        "by_actions": _rows(held, lambda said: said.actions),
        "by_turn": _rows(held, lambda said: said.turn + 1),
    }


def _rows(
    held: Sequence[Prediction], key: Callable[[Prediction], int | None]
) -> list[dict[str, Any]]:
    by_distance: dict[int, list[Prediction]] = defaultdict(list)
    for said in held:
        if (at := key(said)) is not None:
            by_distance[at].append(said)
    return [{"at": at, **_example(by_distance[at])} for at in sorted(by_distance)]


def _example(held: Sequence[Prediction]) -> dict[str, Any]:
    example: dict[str, Any] = {
        "predictions": len(held),
        "right": sum(bool(said.right) for said in held),
    }
    # Both true states are needed, because changes are measured from the state before the actions.
    pairs = [
        (said.text, said.before, said.after)
        for said in held
        if said.before is not None and said.after is not None
    ]
    if pairs:
        model = total_score([score_state(text, after, before) for text, before, after in pairs])
        copy = total_score([score_state(before, after, before) for _, before, after in pairs])
        example |= {
            "with_states": len(pairs),
            "cells_wrong": 1 - model.unit_accuracy,
            "copy_right": sum(words(before) == words(after) for _, before, after in pairs),
            "copy_cells_wrong": 1 - copy.unit_accuracy,
        }
    return example


def inside(response: str, tag: str) -> str:
    """The text of the first block with this tag in a response. Empty if there is none."""
    _, opening, rest = response.partition(f"<{tag}>")
    block, closer, _ = rest.partition(f"</{tag}>")
    return block.strip() if opening and closer else ""


def words(text: str) -> str:
    """Normalize white space, because training stacks break lines differently."""
    return " ".join(text.split())

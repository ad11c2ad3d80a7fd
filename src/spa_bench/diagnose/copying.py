"""Split the cross-entropy of predicted states into copied and changed tokens, to distinguish
learned dynamics from copying.

A token of a predicted state is `copied` if every cell or word in it is at the same position in the
previous state. Otherwise it is `changed`. A model that only learns to copy lowers the cross-entropy
of copied tokens, and writes fewer changed tokens.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from spa.formats.blocks import find_block
from spa.worldmodel.accuracy import placed_units
from spa_bench.diagnose.predictions import inside
from spa_bench.diagnose.rollouts import Rollout

KINDS = ("copied", "changed")


@dataclass(frozen=True, slots=True)
class StateToken:
    """A token of a predicted state.

    `nll` is its negative log-likelihood in nats. `copied` is True if it repeats the previous state.
    `right` is True if it matches the true next state, and None if that state is unknown.
    """

    nll: float
    copied: bool
    right: bool | None


def state_likelihood(rollouts: Sequence[Rollout], tokenizer: Any = None) -> dict[str, Any]:
    """Negative log-likelihood of copied and changed tokens of predicted states, over training
    steps.

    * `why_not`: the reason why there is no result, or "".
    * `steps`: one row per step, grouped by split (`train`, `val`, or "" in files of other stacks).
      A row has `step` and, for each of KINDS, `tokens`, `nll` (mean in nats) and `right`. The share
      `right` counts correct tokens among the tokens with a known true state, and is None if there
      are none.
    * `falls`: for each split, the result of `fall` for its first and last step.

    The log-probs score the text that the model wrote, not the true state. So read `nll` together
    with `right`.
    """
    # Without one log-prob per token, log-probs cannot be assigned to the tokens of states.
    scored = [
        r for r in rollouts if r.logprobs and r.token_ids and len(r.logprobs) == len(r.token_ids)
    ]
    # Keep the splits separate. They sample differently, so a mixture of both could look like a
    # trend.
    steps: dict[str, dict[int, list[StateToken]]] = defaultdict(lambda: defaultdict(list))
    if tokenizer is not None:
        for rollout in scored:
            if rollout.step is not None:
                steps[rollout.split][rollout.step] += state_tokens(rollout, tokenizer)
    rows = {
        split: [{"step": step, **_row(known[step])} for step in sorted(known) if known[step]]
        for split, known in steps.items()
    }
    falls = {split: fall(lines[0], lines[-1]) for split, lines in rows.items() if len(lines) > 1}
    why = ""
    if not scored:
        why = "the rollouts have no log-probs"
    elif tokenizer is None:
        why = "`spa diagnose` reads tokens only with --model (add --model)"
    elif not any(rows.values()):
        why = "the rollouts have no training step, or no predicted state that follows a known state"
    elif not falls:
        why = "all rollouts come from the same training step"
    return {
        "why_not": why,
        "steps": {split: lines for split, lines in rows.items() if lines},
        "falls": falls,
    }


def state_tokens(rollout: Rollout, tokenizer: Any) -> Iterator[StateToken]:
    """Yield the tokens of a rollout's predicted states that contain a cell or a word.

    They are compared with the recorded true states if available, otherwise with the observation in
    the same response.
    """
    ids = rollout.token_ids or ()
    scores = rollout.logprobs or ()
    mask = rollout.mask or [True] * len(ids)
    if len(mask) != len(ids):
        return
    # Each contiguous range of trained tokens is one response. The tokens in between are text of the
    # environment.
    spans = [
        [place for place, _ in run]
        for trained, run in groupby(enumerate(mask), lambda item: item[1])
        if trained
    ]
    for turn, span in enumerate(spans):
        response = [ids[place] for place in span]
        text = _text(tokenizer, response)
        # Use the recorded states if available, otherwise the response's own observation.
        known = turn + 1 < len(rollout.states)
        if rollout.cut and not known:
            continue
        before = rollout.states[turn] if known else inside(text, "observation")
        block = find_block(text, "prediction")
        if block is None or not before:
            continue
        after = rollout.states[turn + 1] if known else None
        # Decode prefixes, because a character may span several tokens.
        ends = [len(_text(tokenizer, response[: count + 1])) for count in range(len(response))]
        for token, (copied, right) in _judged(
            text[slice(*block)], block[0], before, after, ends
        ).items():
            if not math.isnan(score := scores[span[token]]):
                yield StateToken(nll=-score, copied=copied, right=right)


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )


def _judged(
    said: str, offset: int, before: str, after: str | None, ends: Sequence[int]
) -> dict[int, tuple[bool, bool | None]]:
    """Judge each token: whether all its units match the state before, and whether all match the
    state after, or None if that is unknown.

    `ends` has the end of each token in the response, and `offset` is the start of `said` in the
    response.
    """
    old = {place: unit for place, (unit, _, _) in placed_units(before).items()}
    new = (
        None
        if after is None
        else {place: unit for place, (unit, _, _) in placed_units(after).items()}
    )
    verdicts: dict[int, tuple[bool, bool | None]] = {}
    for place, (unit, start, end) in placed_units(said).items():
        # Token i covers characters ends[i-1] to ends[i]. A unit may span several tokens.
        first = bisect_right(ends, offset + start)
        last = bisect_right(ends, offset + end - 1)
        for token in range(first, last + 1):
            copied, right = verdicts.get(token, (True, None if new is None else True))
            verdicts[token] = (
                copied and old.get(place) == unit,
                right and new is not None and new.get(place) == unit,
            )
    return {
        token: (copied, None if new is None else bool(right))
        for token, (copied, right) in verdicts.items()
    }


def _row(tokens: Sequence[StateToken]) -> dict[str, Any]:
    return {kind: _kind([t for t in tokens if t.copied == (kind == "copied")]) for kind in KINDS}


def _kind(tokens: Sequence[StateToken]) -> dict[str, Any]:
    known = [token.right for token in tokens if token.right is not None]
    return {
        "tokens": len(tokens),
        "nll": sum(token.nll for token in tokens) / len(tokens) if tokens else None,
        "right": sum(known) / len(known) if known else None,
    }


def fall(first: Mapping[str, Any], last: Mapping[str, Any]) -> dict[str, float]:
    """Split the decrease of the mean negative log-likelihood of state tokens between two rows of
    `state_likelihood` into parts.

    `changed` and `copied` are the parts that are due to tokens of this kind becoming more likely.
    `mixture` is the part that is due to a growing share of the more likely kind. The parts add up
    to `total`. Each kind's decrease is weighted by its mean share, and the change of its share by
    its mean likelihood (Kitagawa's decomposition). A kind without tokens in one row takes the
    likelihood of the other row.
    """
    shares = [
        {kind: row[kind]["tokens"] / sum(row[k]["tokens"] for k in KINDS) for kind in KINDS}
        for row in (first, last)
    ]
    parts = {"mixture": 0.0}
    for kind in KINDS:
        ends = [first[kind]["nll"], last[kind]["nll"]]
        one, two = (
            next((nll for nll in order if nll is not None), 0.0) for order in (ends, ends[::-1])
        )
        # With weights that are means over both ends, the parts add up to the total without an
        # interaction term.
        parts[kind] = (shares[0][kind] + shares[1][kind]) / 2 * (one - two)
        parts["mixture"] += (one + two) / 2 * (shares[0][kind] - shares[1][kind])
    return {"total": sum(parts.values()), **parts}

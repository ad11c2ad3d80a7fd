"""Perplexity of state texts under a model (as in arXiv 2510.15047).

A state is given as a user message, alone or at the end of the game's first prompt. Perplexity is
the exponential of the mean negative log-likelihood per token, averaged first over the tokens of a
state, then over states. Tokenizers split grids differently, so the perplexity per symbol is
reported as well. A symbol is a character of a grid, a word, a number or a cell. If this perplexity
is above the number of different symbols, the model is worse than uniform guessing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from spa.errors import ModelError
from spa.evaluation.aggregate import DIGITS
from spa.evaluation.statistics import bootstrap_mean
from spa.prompts.template import ChatTemplate
from spa.types import Message
from spa.worldmodel.accuracy import state_units
from spa_measurements.likelihood import ResponseTokens, Scored


def state_sequence(
    template: ChatTemplate, before: Sequence[Message], prompt: str, state: str
) -> ResponseTokens:
    """Tokenize a conversation whose last user message is `prompt`, and mark the last occurrence of
    `state` as block 0.

    Raises ModelError if the chat template changes the state's text.
    """
    text, ids, stops = template.start_with_ends((*before, {"role": "user", "content": prompt}))
    # The last occurrence, because rules and examples before it may show the same state.
    start = text.rfind(state)
    if start < 0:
        raise ModelError(
            "the chat template changes the string of a state, so `spa` cannot find the tokens of the state. Use a chat "
            "template that keeps messages unchanged."
        )
    ends = np.asarray(stops)
    starts = np.concatenate([[0], ends[:-1]])
    # A token that overlaps the state counts as part of it, even if it also contains neighbouring
    # text.
    block = np.where((starts < start + len(state)) & (ends > start), 0, -1).astype(np.int8)
    block[0] = -1  # the first token has no context, so it has no probability
    return ResponseTokens(ids=np.asarray(ids, np.int32), block=block)


def perplexity_report(
    scored: Sequence[Scored], states: Sequence[str], *, seed: int = 0
) -> dict[str, Any]:
    """Compute perplexity per token and per symbol with 95 % bootstrap intervals over states, as
    JSON-ready values."""
    totals = np.array([-float(item.logprob.sum()) for item in scored])
    tokens = np.array([len(item.logprob) for item in scored])
    units = [state_units(state) for state in states]
    lengths = np.array([len(texts) for texts in units])
    symbols = len({unit for texts in units for unit in texts})
    per_symbol = _exponential(totals / lengths, seed)
    return {
        "states": len(states),
        "tokens_per_state": round(float(tokens.mean()), DIGITS),
        "symbols_per_state": round(float(lengths.mean()), DIGITS),
        "distinct_symbols": symbols,
        "per_token": _exponential(totals / tokens, seed),
        "per_symbol": per_symbol,
        "worse_than_guessing": per_symbol["mean"] > symbols,
    }


def _exponential(values: np.ndarray, seed: int) -> dict[str, float]:
    # The interval is computed on the log scale, in nats, and exponentiated afterwards. So `mean` is
    # the geometric mean over states.
    interval = bootstrap_mean([values], seed=seed)
    return {
        name: round(float(np.exp(getattr(interval, name))), DIGITS)
        for name in ("mean", "low", "high")
    }

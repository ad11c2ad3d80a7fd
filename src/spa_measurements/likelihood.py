"""Teacher-forced likelihood of true transitions under a model.

The corrected response of a transition (true state, true next state, executed actions) follows the
prompt that shows the state. Tokens of three blocks are scored: observation, prediction and answer.
Each token is conditioned on everything before it. The format puts the answer last, so the
prediction is conditioned on the state but not on the actions, and the answer on the true next
state. Their joint probability is the model's probability of the transition.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from spa.evaluation.aggregate import rounded
from spa.formats.blocks import find_block
from spa.models.forward import chunk_rows, layers_of, micro_batches, raw_logits
from spa.prompts.template import ChatTemplate

BLOCKS = ("observation", "prediction", "answer")
BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTokens:
    """The T tokens of a prompt and a given response, and the block of each token."""

    ids: np.ndarray  # int32 [T]
    block: np.ndarray  # int8 [T], index into BLOCKS; -1 outside the blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Scores of the N tokens of one sequence that are inside blocks. Every array has shape [N]."""

    logprob: np.ndarray  # of the true token
    top: np.ndarray  # probability of the most likely token
    hit: np.ndarray  # whether the true token is the most likely one
    block: np.ndarray  # index into BLOCKS

    def total(self, *blocks: str) -> float:
        """Return the sum of the log-probs of all tokens in the given blocks."""
        return float(
            self.logprob[np.isin(self.block, [BLOCKS.index(name) for name in blocks])].sum()
        )


def response_sequence(
    template: ChatTemplate, prompt_ids: Sequence[int], response: str, prefill: str
) -> ResponseTokens:
    """Concatenate the token ids of the prompt, the response and the end of the message, and mark
    the tokens of each block. The text `response` includes `prefill`.

    A token belongs to a block if it contains a character of the block's content, without the white
    space around it.
    """
    # The prefill belongs to the prompt: neither its text nor its tokens are scored.
    body = response.removeprefix(prefill)
    ids, stops = template.response_tokens(response, prefill)
    ends = np.asarray(stops, dtype=np.int64)
    # Token i covers characters starts[i] to ends[i] of the body.
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    block = np.full(len(prompt_ids) + len(ids) + len(template.end_ids), -1, dtype=np.int8)
    for index, name in enumerate(BLOCKS):
        span = find_block(body, name)
        if span is None:
            continue
        content = body[span[0] : span[1]]
        # Overlap, not containment: a tokenizer may merge the last symbol of a block with the white
        # space after it, and that token still has content.
        first = span[0] + len(content) - len(content.lstrip())
        last = first + len(content.strip())
        block[len(prompt_ids) : len(prompt_ids) + len(ids)][(starts < last) & (ends > first)] = (
            index
        )
    return ResponseTokens(
        ids=np.concatenate([prompt_ids, ids, template.end_ids]).astype(np.int32), block=block
    )


def score_sequences(
    model: Any,
    sequences: Sequence[ResponseTokens],
    *,
    rows: int = 64,
    autocast: torch.dtype | None = None,
) -> list[Scored]:
    """Score all sequences with teacher forcing, `rows` at a time. Results are in the order of
    `sequences`."""
    lengths = torch.tensor([len(sequence.ids) for sequence in sequences])
    device = next(model.parameters()).device
    # Batches are sorted by length, so results are stored by the sequence's index.
    out: dict[int, Scored] = {}
    was_training = model.training
    model.eval()
    with (
        torch.inference_mode(),
        torch.autocast(device.type, dtype=autocast, enabled=autocast is not None),
    ):
        for batch in micro_batches(lengths, rows=rows, max_tokens=None):
            picked = [sequences[row] for row in batch.tolist()]
            # Right padding with id 0 needs no attention mask. Attention is causal, so no scored
            # token can attend to the padding after it.
            ids = np.zeros((len(picked), int(lengths[batch].max())), dtype=np.int64)
            mask = np.zeros_like(ids, dtype=bool)
            for r, sequence in enumerate(picked):
                ids[r, : len(sequence.ids)] = sequence.ids
                mask[r, : len(sequence.ids)] = sequence.block >= 0
            # `mask[:, 1:]` is [B, T - 1], because the logits at position t score token t + 1.
            parts = _score(
                model,
                torch.from_numpy(ids).to(device),
                torch.from_numpy(mask[:, 1:].copy()).to(device),
            )
            # Each of the three results is one flat [N] array for the batch. `cuts` are the
            # boundaries of its sequences.
            cuts = np.cumsum(mask.sum(axis=1))[:-1]
            logprobs, tops, hits = (np.split(part.cpu().numpy(), cuts) for part in parts)
            for r, row in enumerate(batch.tolist()):
                block = picked[r].block[picked[r].block >= 0]
                out[row] = Scored(logprob=logprobs[r], top=tops[r], hit=hits[r], block=block)
    model.train(was_training)
    return [out[row] for row in range(len(sequences))]


def _score(
    model: Any, ids: torch.Tensor, mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Score the N tokens selected by `mask`: ids int64 [B, T], mask bool [B, T - 1] -> log-probs
    float32 [N], top probabilities float32 [N], hits bool [N]."""
    # Hidden states are selected before the head: [B, T - 1, H] -> [N, H], so that [N, V] logits
    # exist only for scored tokens.
    hidden = layers_of(model)(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][mask]
    targets = ids[:, 1:][mask]
    parts = []
    rows = chunk_rows(model)
    # `max(1, ...)` gives one empty chunk if there is nothing to score, so that there are tensors to
    # concatenate.
    for start in range(0, max(1, len(hidden)), rows):
        logprobs = raw_logits(model, hidden[start : start + rows]).log_softmax(-1)
        best, index = logprobs.max(-1)
        wanted = targets[start : start + rows]
        parts.append((logprobs.gather(-1, wanted[:, None])[:, 0], best.exp(), index == wanted))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]


def likelihood_report(
    truth: Sequence[Scored], copied: Mapping[int, Scored], *, vocabulary: int
) -> dict[str, Any]:
    """Compute likelihood and calibration of the true transitions, as JSON-ready values.

    Args:
        truth: scores of the true responses.
        copied: index of a transition that changed the state -> scores of the same response with the
            old state in the prediction block.
        vocabulary: size of the vocabulary, for the uniform baseline.

    Returns:
        `nll_per_token`: block -> mean negative log-likelihood of its tokens in nats.
        `nll_per_state`: sum over the prediction block in nats, as a mean over transitions.
        `uniform_nll_per_token`: ln V, for a vocabulary of size V.
        `copied_state_nll_per_token` and `changed_state_nll_per_token`: mean over the prediction
        tokens of changed transitions, with the old and with the true next state.
        `prefers_truth`: share of changed transitions whose prediction and answer together are more
        likely with the true next state than with the old one.
        `calibration`: result of the function `calibration` on the prediction tokens.
    """
    report: dict[str, Any] = {
        "nll_per_token": {name: nll_per_token(truth, name) for name in BLOCKS},
        "nll_per_state": rounded(-np.mean([scored.total("prediction") for scored in truth])),
        "uniform_nll_per_token": rounded(np.log(vocabulary)),
    }
    if copied:
        # The prediction precedes the answer, so only both blocks together express that this action
        # leads to this state.
        both = ("prediction", "answer")
        wins = [truth[index].total(*both) > scored.total(*both) for index, scored in copied.items()]
        report["copied_state_nll_per_token"] = nll_per_token(list(copied.values()), "prediction")
        report["changed_state_nll_per_token"] = nll_per_token(
            [truth[index] for index in copied], "prediction"
        )
        report["prefers_truth"] = {"mean": rounded(np.mean(wins)), "n": len(wins)}
    # Calibration is measured only on prediction tokens. Observation tokens repeat the prompt, so
    # they are easy and would hide poor calibration.
    inside = [scored.block == BLOCKS.index("prediction") for scored in truth]
    report["calibration"] = calibration(
        np.concatenate([scored.top[mask] for scored, mask in zip(truth, inside, strict=True)]),
        np.concatenate([scored.hit[mask] for scored, mask in zip(truth, inside, strict=True)]),
    )
    return report


def nll_per_token(scored: Sequence[Scored], block: str) -> float | None:
    """Return the mean negative log-likelihood in nats over all tokens of a block; None for a block
    without tokens."""
    index = BLOCKS.index(block)
    values = (
        np.concatenate([item.logprob[item.block == index] for item in scored])
        if scored
        else np.zeros(0)
    )
    return rounded(-values.mean()) if len(values) else None


def calibration(confidence: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """Compute the expected calibration error over ten equal bins of confidence (arXiv 1706.04599).

    `confidence` `[N]` is the probability of the most likely token, and `right` `[N]` whether it is
    the true one. The error is the mean over tokens of |accuracy - confidence| in their bin.
    """
    if not len(confidence):
        return {"tokens": 0}
    # A confidence of 1.0 belongs to the last bin.
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    # sums[0] / count is a bin's mean confidence, sums[1] / count its accuracy. Weighted by count,
    # the division cancels in the error below.
    sums = [
        np.bincount(bins, weights=values.astype(float), minlength=BINS)
        for values in (confidence, right)
    ]
    return {
        "tokens": len(confidence),
        "accuracy": rounded(right.mean()),
        "confidence": rounded(confidence.mean()),
        "ece": rounded(np.abs(sums[0] - sums[1]).sum() / len(confidence)),
        "bins": [
            {
                "confidence": rounded(sums[0][b] / count[b]),
                "accuracy": rounded(sums[1][b] / count[b]),
                "n": int(count[b]),
            }
            for b in range(BINS)
            if count[b]
        ],
    }

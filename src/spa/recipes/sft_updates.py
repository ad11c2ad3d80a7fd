"""Batches, loss and update of SFT.

The loss is the mean negative log-likelihood over all response tokens of the global batch: the true
state, the true next state, and the actions that lead from one to the other.

Teacher-forced accuracy measures whether a model would write each part of an example, given the true
text before it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from spa.config.schema import Config
from spa.formats.base import ResponseFormat
from spa.formats.registry import format_of
from spa.models.forward import token_logprobs
from spa.models.vision import ImageReader, RowFiles
from spa.prompts.template import ChatTemplate
from spa.prompts.token_spans import token_bounds
from spa.training.update import LossInfo, MicroBatching, Trainable, forward_passes, score_logprobs
from spa.training.update import update as update_model
from spa.types import Metrics, SamplingParams, TokenBatch
from spa.worldmodel.sequences import TrainingSequence


def teacher_forced_accuracy(
    is_right: np.ndarray,
    sequences: Sequence[TrainingSequence],
    form: ResponseFormat,
    template: ChatTemplate,
) -> Metrics:
    """Return the share of correct response parts for each kind of part in `form.parts`, as metrics.

    A part is correct if each of its tokens is the most likely one. A token belongs to the part that
    contains its last character.

    `is_right` is bool [B, A]: entry t tells whether token t + 1 of the sequence is the most likely
    one.
    """
    counts = Counter[str]()
    right = Counter[str]()
    for row, sequence in zip(is_right, sequences, strict=True):
        for begin, end in sequence.responses:
            ids = sequence.token_ids[begin:end]
            ends = np.array([last for _, last in token_bounds(ids, template)])
            ends += len(sequence.prefill)
            hits = row[begin - 1 : end - 1]
            text = sequence.prefill + template.decode_response([*map(int, ids)])
            for kind, start, stop in form.parts(text):
                inside = (start < ends) & (ends <= stop)
                if inside.any():
                    counts[kind] += 1
                    right[kind] += int(hits[inside].all())
    return {f"val/teacher_forced/{kind}": right[kind] / count for kind, count in counts.items()}


def _with_whole_responses(sequence: TrainingSequence) -> TrainingSequence:
    """Return the sequence with a mask of all tokens of its responses, whatever contributes to the
    loss."""
    mask = np.zeros(len(sequence.token_ids), dtype=bool)
    for begin, end in sequence.responses:
        mask[begin:end] = True
    return replace(sequence, mask=mask)


FORCED_EXAMPLES = 64
"""Number of validation sequences on which teacher-forced accuracy is measured."""


def update(
    part: Trainable,
    batch: list[TrainingSequence],
    micro: MicroBatching,
    device: torch.device,
    reader: ImageReader | None = None,
) -> Metrics:
    """Take one optimizer step on `batch` and return its metrics (`train/<name>`). The gradient
    depends neither on the split into micro-batches nor on the number of ranks."""
    tokens = token_batch(batch, reader)
    # The loss is divided by the number of tokens in the whole batch of all ranks. In a mean of
    # micro-batch means, the tokens of short responses would have a larger weight.
    targets = max(1, int(tokens.mask.sum()))
    update_metrics = update_model(
        part, [tokens], partial(response_loss, targets=targets), micro, device
    )
    metrics = {f"train/{name}": value for name, value in update_metrics.items()}
    examples = sum(sequence.examples for sequence in batch)
    return metrics | {"train/tokens": float(targets), "train/examples": float(examples)}


def response_loss(model: Any, batch: TokenBatch, *, targets: int) -> tuple[torch.Tensor, LossInfo]:
    """Return a micro-batch's share of the mean loss, and sums to report. The loss is the summed
    negative log-likelihood of the masked tokens, divided by `targets`, their number in the whole
    batch."""
    logprobs, entropy = token_logprobs(
        model, batch.input_ids, batch.mask, images=batch.images, with_entropy=True
    )
    return -logprobs.sum() / targets, {
        "entropy": entropy.detach().sum(),
        "tokens": batch.mask.sum(),
    }


def lengths_of(sequences: Sequence[TrainingSequence]) -> torch.Tensor:
    """Return the number of tokens of each sequence, int64 [B]."""
    return torch.tensor([len(sequence.token_ids) for sequence in sequences])


def token_batch(
    sequences: Sequence[TrainingSequence], reader: ImageReader | None = None
) -> TokenBatch:
    """The sequences as right-padded tensors, with their images for a vision-language model."""
    width = max(len(sequence.token_ids) for sequence in sequences)
    ids = np.zeros((len(sequences), width), dtype=np.int64)
    mask = np.zeros((len(sequences), width), dtype=bool)
    for example, sequence in enumerate(sequences):
        ids[example, : len(sequence.token_ids)] = sequence.token_ids
        mask[example, : len(sequence.mask)] = sequence.mask
    # Entry t of the shifted mask belongs to the prediction of token t + 1.
    return TokenBatch(
        input_ids=torch.from_numpy(ids),
        lengths=lengths_of(sequences),
        mask=torch.from_numpy(mask[:, 1:].copy()),
        images=None
        if reader is None
        else RowFiles(reader, tuple(sequence.images for sequence in sequences)),
    )


def validation_loss(
    part: Trainable,
    batch: list[TrainingSequence],
    micro: MicroBatching,
    device: torch.device,
    reader: ImageReader | None = None,
) -> float:
    """Return the mean negative log-likelihood, in nats, over all response tokens of the validation
    examples `batch`, which must not be empty."""
    tokens = token_batch(batch, reader)
    losses = forward_passes(part, tokens, micro, device, _summed_nll)
    # Each rank has computed the loss of its own examples, so the sums are added over all ranks.
    sums = part.replica.world.all_reduce_sums({"nll": sum((value for _, value in losses), 0.0)})
    return sums["nll"] / max(1, int(tokens.mask.sum()))


def forced_accuracy(
    cfg: Config,
    part: Trainable,
    batch: list[TrainingSequence],
    micro: MicroBatching,
    device: torch.device,
    template: ChatTemplate,
) -> Metrics:
    """Compute the teacher-forced accuracy for each kind of response part: the share of parts that
    the model would write greedily, given the true text before them."""
    # With top_k=1 the true token has log-prob 0 exactly if it is the most likely one.
    greedy = SamplingParams(top_k=1)
    whole = token_batch([*map(_with_whole_responses, batch)], template.images)
    logprobs = score_logprobs(part, whole, micro, device, greedy)
    form = format_of(cfg.agent_proxy.response_format)
    return teacher_forced_accuracy((logprobs > -0.1).numpy(), batch, form, template)


def _summed_nll(model: Any, batch: TokenBatch) -> float:
    return -float(token_logprobs(model, batch.input_ids, batch.mask, images=batch.images)[0].sum())

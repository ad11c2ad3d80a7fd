"""Out of memory in the middle of training: the step is done again in smaller pieces, with the same result."""

import logging

import pytest
import torch
from helpers.batches import plain_streams
from helpers.families import small_model
from torch import nn

from spa.errors import TrainingError
from spa.models.forward import token_logprobs
from spa.training.optim import make_optimizer
from spa.training.update import (
    MicroBatching,
    Scorer,
    Trainable,
    is_out_of_memory,
    mini_batch,
    oom_retry,
    score_logprobs,
    update,
)
from spa.types import PPOBatch

CPU = torch.device("cpu")


class Crowded(nn.Module):
    """A model on a device with room for `limit` tokens at a time; it fails in the backward pass, after some gradients
    have been written, if `late`."""

    def __init__(self, model, limit: int, *, late: bool = False) -> None:
        super().__init__()
        self.base_model, self.head, self.config = (
            model.base_model,
            model.get_output_embeddings(),
            model.config,
        )
        self.limit, self.late, self.failures = limit, late, 0
        self.base_model.register_forward_pre_hook(self.check, with_kwargs=True)

    def get_output_embeddings(self):
        return self.head

    def check(self, module, args, kwargs):
        ids = kwargs["input_ids"]
        if ids.numel() <= self.limit:
            return
        self.failures += 1
        if not self.late or not torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        weight = self.base_model.layers[0].mlp.down_proj.weight
        handle = weight.register_hook(lambda grad: self.fail(handle))

    def fail(self, handle):
        handle.remove()
        raise torch.OutOfMemoryError("CUDA out of memory in backward")


def batch(rows: int = 6, tokens: int = 10) -> PPOBatch:
    made = torch.Generator().manual_seed(0)
    mask = torch.rand((rows, tokens - 1), generator=made) < 0.5
    zeros = torch.zeros((rows, tokens - 1))
    return PPOBatch(
        input_ids=torch.randint(0, 300, (rows, tokens), generator=made),
        lengths=torch.full((rows,), tokens),
        mask=mask,
        turns=torch.where(mask, 0, -1),
        turn_ends=torch.zeros_like(mask),
        rewards=zeros,
        scores=torch.zeros(rows),
        group_ids=torch.zeros(rows, dtype=torch.int64),
        tag_ids=torch.zeros(rows, dtype=torch.int64),
        sampler_logprobs=zeros,
        **plain_streams(mask),
        old_logprobs=zeros,
        advantages=zeros,
        returns=zeros,
    )


def loss_fn(model, small):
    logprobs, _ = token_logprobs(model, small.input_ids, small.mask)
    return -(small.token_weights * logprobs).sum(), {"tokens": small.mask.sum()}


def run(limit: int, *, late: bool = False, micro: MicroBatching | None = None):
    model = Crowded(small_model("qwen2"), limit, late=late)
    part = Trainable(model=model, optimizer=make_optimizer(model, lr=1e-3), grad_clip=1e9)
    mini = mini_batch(batch(), torch.arange(6), "token-mean")
    metrics = update(part, [mini], loss_fn, micro or MicroBatching(), CPU)
    return part, metrics


@pytest.mark.parametrize(
    ("late", "micro"),
    [
        (False, MicroBatching()),
        (True, MicroBatching(rows=6)),
        (True, MicroBatching(max_tokens=60)),
    ],
)
def test_a_step_that_ran_out_of_memory_gives_the_same_weights(late, micro, caplog):
    caplog.set_level(logging.WARNING)
    roomy, expected = run(1000)
    part, metrics = run(25, late=late, micro=micro)
    assert part.model.failures == part.micro_batch_shrink == 2  # 60 tokens, 30, then 10 or 20
    assert metrics["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    for a, b in zip(part.model.parameters(), roomy.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)
    assert "Out of memory with 6 examples per micro-batch" in caplog.text
    assert "Out of memory with 3 examples per micro-batch" in caplog.text


def test_what_was_learnt_about_memory_is_remembered():
    part, _ = run(25)
    failures = part.model.failures
    score_logprobs(part, batch(), MicroBatching(), CPU)
    assert part.model.failures == failures


def test_scoring_goes_on_too():
    expected = score_logprobs(Scorer(model=small_model("qwen2")), batch(), MicroBatching(), CPU)
    scorer = Scorer(model=Crowded(small_model("qwen2"), 25))
    torch.testing.assert_close(
        score_logprobs(scorer, batch(), MicroBatching(), CPU), expected, atol=1e-5, rtol=1e-5
    )
    assert scorer.micro_batch_shrink == 2


def test_one_sequence_that_does_not_fit_ends_training_with_advice():
    with pytest.raises(
        TrainingError, match=r"one sequence of 10 tokens.*gradient_checkpointing.*doctor --fit"
    ):
        run(5)


def test_other_errors_are_not_taken_for_memory():
    with pytest.raises(RuntimeError, match="shapes"):
        for attempt in oom_retry(
            Scorer(model=None), MicroBatching(), torch.tensor([3, 4]), packed=False
        ):
            with attempt:
                raise RuntimeError("shapes do not match")
    assert is_out_of_memory(
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")
    )
    assert not is_out_of_memory(ValueError("can't allocate memory"))


def test_halved_limits():
    lengths = torch.tensor([4, 4, 4, 4])
    sizes = [
        [len(p) for p in MicroBatching(rows=4).split(lengths, micro_batch_shrink=n)]
        for n in range(4)
    ]
    assert sizes == [[4], [2, 2], [1, 1, 1, 1], [1, 1, 1, 1]]
    sizes = [
        [len(p) for p in MicroBatching(max_tokens=16).split(lengths, micro_batch_shrink=n)]
        for n in range(4)
    ]
    assert sizes == [[4], [2, 2], [1, 1, 1, 1], [1, 1, 1, 1]]

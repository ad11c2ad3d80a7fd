"""Whole fine-tuning steps beside TRL: the same rows through our loss, clipping and optimizer give the gradients and the
parameters that SFTTrainer gave (tests/golden/trl_sft.json, written by benchmarks/parity/trl_sft.py)."""

import numpy as np
import pytest
import torch
from helpers.golden import read_golden
from helpers.reference_sft import (
    BATCH,
    BETAS,
    CASES,
    CLIP,
    LR,
    ROWS,
    SFTCase,
    frozen_rows,
    small_llama,
)
from helpers.reference_updates import change, weights

from spa.config.schema_stages import SFTOptimConfig
from spa.models.forward import pack_rows
from spa.recipes.build import sft_optimizer
from spa.recipes.sft_updates import update
from spa.training.update import MicroBatching, Trainable
from spa.worldmodel.sequences import TrainingSequence, spread_evenly

GOLDEN = read_golden("trl_sft.json")
CPU = torch.device("cpu")


def batches() -> list[list[TrainingSequence]]:
    """The frozen examples in their order, as TRL reads them: the last batch of an epoch is smaller."""
    examples = [
        TrainingSequence(
            token_ids=np.asarray(example.ids, np.int32),
            mask=np.asarray(example.targets),
            examples=1,
        )
        for example in frozen_rows()
    ]
    return [examples[start : start + BATCH] for start in range(0, ROWS, BATCH)]


def trainable(case: SFTCase) -> Trainable:
    optim = SFTOptimConfig(
        lr=LR,
        betas=BETAS,
        eps=case.eps,
        weight_decay=case.weight_decay,
        warmup_steps_ratio=case.warmup / case.steps,
        lr_scheduler="cosine" if case.scheduler == "cosine" else "constant",
    )
    model = small_llama()
    optimizer = sft_optimizer(model, optim, case.steps)
    return Trainable(model=model, optimizer=optimizer, grad_clip=CLIP)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_whole_fine_tuning_steps_are_those_of_trl(name: str, packed: bool):
    case, expected = CASES[name], GOLDEN["cases"][name]
    part = trainable(case)
    if packed:
        assert pack_rows(part.model)
    gradients: dict[str, float] = {}

    def note_gradients(*_) -> None:
        gradients.update(
            {key: float(p.grad.double().norm()) for key, p in part.model.named_parameters()}
        )

    part.optimizer.parts[0].register_step_pre_hook(note_gradients)
    for step, batch in enumerate(batches() * case.epochs):
        # During warm-up transformers is one step behind: its first step has rate 0.
        part.optimizer.at(step - 1 if step < case.warmup else step)
        before, wanted = weights(part.model), expected[step]
        # TRL's micro-batches are others: the same numbers
        metrics = update(part, batch, MicroBatching(rows=3), CPU)
        assert metrics["train/lr"] == pytest.approx(wanted["lr"], rel=1e-7)
        assert metrics["train/loss"] == pytest.approx(wanted["loss"], rel=2e-6)
        assert metrics["train/grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-5)
        assert gradients == pytest.approx(wanted["gradient"], rel=1e-4, abs=1e-7)
        for parameter, numbers in change(part.model, before).items():
            assert numbers == pytest.approx(wanted["change"][parameter], rel=2e-3, abs=2e-5), (
                step,
                parameter,
            )


def test_an_epoch_has_as_many_steps_as_trls():
    assert len(spread_evenly([1] * ROWS, BATCH, range(ROWS))) * 2 == len(GOLDEN["cases"]["cosine"])

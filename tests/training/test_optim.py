"""Schedules by hand, and optimizer states that go on where they stopped."""

import pytest
import torch
from helpers.families import small_model

from spa.models.lora import add_adapters
from spa.run.checkpoint import load_state, save_checkpoint
from spa.training.optim import Optimizer, make_optimizer, warmup_constant, warmup_cosine


def test_warm_up_and_cosine_by_hand():
    factor = warmup_cosine(10, 2)
    assert [factor(step) for step in (0, 1, 2)] == [0.5, 1.0, 1.0]
    assert factor(6) == pytest.approx(0.5)  # half of the eight steps after the warm-up
    assert factor(10) == pytest.approx(0.0)
    assert factor(99) == pytest.approx(0.0)
    assert warmup_cosine(10, 2, floor=0.1)(6) == pytest.approx(0.55)
    assert warmup_cosine(10, 0)(0) == 1.0


def test_warm_up_and_constant_by_hand():
    factor = warmup_constant(4)
    assert [factor(step) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert warmup_constant(0)(0) == 1.0


def test_rates_follow_the_schedule_from_the_first_step_on():
    model = small_model("qwen2")
    optimizer = make_optimizer(model, lr=0.1, schedule=lambda step: 1 / (step + 1))
    rates = []
    for step in range(3):
        optimizer.at(step)
        optimizer.step()  # a step of the stage may be several of the optimizer
        optimizer.step()
        rates.append(optimizer.lr)
    assert rates == pytest.approx([0.1, 0.05, 0.1 / 3])


def test_muon_takes_the_matrices_of_the_layers_and_adamw_the_rest():
    model = small_model("llama3")
    optimizer = make_optimizer(model, name="muon", lr=0.1, muon_lr=0.02)
    muon, adamw = (
        [p for group in part.param_groups for p in group["params"]] for part in optimizer.parts
    )
    names = {id(p): name for name, p in model.named_parameters()}
    assert all(".layers." in names[id(p)] and p.ndim == 2 for p in muon)
    assert all(p.ndim == 1 or "embed" in names[id(p)] or "head" in names[id(p)] for p in adamw)
    assert {*map(id, muon), *map(id, adamw)} == set(names)


def test_muon_trains_adapters_which_are_all_matrices():
    model = small_model("llama3")
    add_adapters(model, rank=4, alpha=8.0, seed=0)
    optimizer = make_optimizer(model, name="muon", lr=0.1)
    before = [p.clone() for p in model.parameters() if p.requires_grad]
    train(model, optimizer, range(2))
    after = [p for p in model.parameters() if p.requires_grad]
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_frozen_parameters_are_left_out():
    model = small_model("qwen2")
    model.get_input_embeddings().weight.requires_grad_(False)
    optimizer = make_optimizer(model, lr=0.1)
    held = {
        id(p) for part in optimizer.parts for group in part.param_groups for p in group["params"]
    }
    assert id(model.get_input_embeddings().weight) not in held


def train(model, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.at(step)
        ids = torch.arange(5 + step, 15 + step)[None]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_state_that_was_saved_goes_on_bit_for_bit(name, tmp_path):
    class NoTokenizer:
        def save_pretrained(self, folder):
            """Nothing to write."""

    def made(model) -> Optimizer:
        return make_optimizer(model, name=name, lr=0.01, schedule=warmup_cosine(6, 1))

    whole = small_model("qwen2")
    train(whole, made(whole), range(6))

    first = small_model("qwen2")
    optimizer = made(first)
    train(first, optimizer, range(3))
    state = {"optimizer": optimizer.state_dict()}
    folder = save_checkpoint(tmp_path, 3, model=first, tokenizer=NoTokenizer(), state=state)
    second = type(first).from_pretrained(folder)
    optimizer = made(second)
    optimizer.load_state_dict(load_state(folder)["optimizer"])
    assert optimizer.steps == 3
    train(second, optimizer, range(3, 6))
    for a, b in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)

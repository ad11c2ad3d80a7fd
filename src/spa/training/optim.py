"""Optimizers and learning-rate schedules."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from spa.distributed.replicas import like


class Optimizer:
    """One or more torch optimizers that take their steps together and have the same schedule.

    `schedule` maps the number of finished steps of the stage to a factor on each base learning
    rate. A step of the stage may contain several optimizer steps or none, so the caller counts the
    steps of the stage and calls `at`.
    """

    def __init__(
        self, parts: Sequence[torch.optim.Optimizer], schedule: Callable[[int], float]
    ) -> None:
        self.parts = list(parts)
        self._base = [[group["lr"] for group in part.param_groups] for part in self.parts]
        self._schedule = schedule
        self.steps = 0
        self.at(0)

    @property
    def lr(self) -> float:
        """The current learning rate of the first parameter group."""
        return self.parts[0].param_groups[0]["lr"]

    def at(self, finished: int) -> None:
        """Set the learning rates for the step that follows `finished` steps of the stage."""
        # Rates are computed from the base rates, so that a schedule has no state to restore.
        factor = self._schedule(finished)
        for part, rates in zip(self.parts, self._base, strict=True):
            for group, rate in zip(part.param_groups, rates, strict=True):
                group["lr"] = rate * factor

    def step(self) -> None:
        """Take one step with every optimizer."""
        for part in self.parts:
            part.step()
        self.steps += 1

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of every optimizer and the number of optimizer steps."""
        return {"steps": self.steps, "parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state from `state_dict` with full tensors, and shard each tensor like its
        parameter. Learning rates and other hyperparameters keep their configured values."""
        self.steps = int(state["steps"])
        for part, saved in zip(self.parts, state["parts"], strict=True):
            parameters = [parameter for group in part.param_groups for parameter in group["params"]]
            moments = {
                index: {name: like(parameters[index], value) for name, value in entry.items()}
                for index, entry in saved["state"].items()
            }
            # Learning rates, betas and weight decay come from the configuration, which may have
            # changed.
            groups = [
                {**own, "params": group["params"]}
                for own, group in zip(part.param_groups, saved["param_groups"], strict=True)
            ]
            part.load_state_dict({"state": moments, "param_groups": groups})


def make_optimizer(
    model: nn.Module,
    *,
    name: str = "adamw",
    lr: float,
    betas: Sequence[float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    muon_lr: float = 0.02,
    schedule: Callable[[int], float] = lambda step: 1.0,
) -> Optimizer:
    """Create an optimizer for the trainable parameters. With the name `adamw`, AdamW updates all of
    them. With any other name, Muon updates the matrices inside the layers, and AdamW the rest."""
    trained = [(key, p) for key, p in model.named_parameters() if p.requires_grad]
    adam: dict[str, Any] = {
        "lr": lr,
        "betas": (betas[0], betas[1]),
        "eps": eps,
        "weight_decay": weight_decay,
    }
    if name == "adamw":
        return Optimizer([torch.optim.AdamW([p for _, p in trained], **adam)], schedule)
    # Muon orthogonalises the updates of hidden matrices. Embeddings and heads use AdamW.
    matrices = [p for key, p in trained if p.ndim == 2 and "embed" not in key and "head" not in key]
    # Compare parameters by identity, because `==` compares the elements of tensors.
    chosen = {id(p) for p in matrices}
    rest = [p for _, p in trained if id(p) not in chosen]
    parts: list[torch.optim.Optimizer] = []
    if matrices:
        parts.append(torch.optim.Muon(matrices, lr=muon_lr, weight_decay=weight_decay))
    # `rest` is empty with LoRA, which trains only matrices.
    if rest:
        parts.append(torch.optim.AdamW(rest, **adam))
    return Optimizer(parts, schedule)


def warmup_cosine(total: int, warmup: int, *, floor: float = 0.0) -> Callable[[int], float]:
    """Return a schedule: linear warm-up over the first `warmup` of `total` steps, then cosine decay
    of the factor to `floor`."""

    def factor(step: int) -> float:
        # The first factor is 1 / warmup, because a first step at rate 0 would be wasted.
        if step < warmup:
            return (step + 1) / warmup
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))
        return floor + (1 - floor) * cosine

    return factor


def warmup_constant(warmup: int) -> Callable[[int], float]:
    """Return a schedule: linear warm-up over `warmup` steps, then a constant factor of 1."""
    return lambda step: min(1.0, (step + 1) / warmup) if warmup > 0 else 1.0

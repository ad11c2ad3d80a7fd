"""A second view of a model for sampling: the matrices in half precision, everything else shared with the trainer.

Autocast turns float32 matrices into bfloat16 again and again. Sampling a token reads every matrix once, so that would
cost more than the sampling. The twin holds the matrices as autocast would make them; norms, embeddings and the residual
stream stay in float32, so that sampler and trainer compute the same numbers.
"""

import copy
from typing import Any

import torch
from torch import nn


def low_precision_copy(model: Any, dtype: torch.dtype) -> Any:
    """A copy of `model` that shares all parameters, except that linear layers have weights of their own in `dtype`. Use
    it under autocast with that dtype."""
    shared = {id(parameter): parameter for parameter in model.parameters()}
    twin = copy.deepcopy(model, shared)
    for module in twin.modules():
        if isinstance(module, nn.Linear):
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.detach().to(dtype), requires_grad=False))
    return twin


@torch.no_grad()
def refresh_copy(twin: Any, model: Any) -> None:
    """Take over the weights of `model`, in place, so that recorded steps stay valid."""
    for module, source in zip(twin.modules(), model.modules(), strict=True):
        if isinstance(module, nn.Linear):
            for key, parameter in module.named_parameters(recurse=False):
                parameter.copy_(getattr(source, key))

"""Does the reasoning still depend on the prompt? Mutual information between prompts and thoughts.

Entropy alone cannot tell a policy that thinks about its prompt from one that recites varied templates: high entropy
with low mutual information is template collapse (RAGEN-2).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from spa.types import Metrics


def prompt_information(
    log_likelihood: Tensor, own: Tensor, *, ks: Sequence[int] = (1, 2, 4, 8), spread: float | None = None
) -> Metrics:
    """Mutual information I(X; Z) of prompts X and thoughts Z, by cross-scoring every thought under every prompt.

    With m_i the log-likelihood of thought i under its own prompt and q_i its log-likelihood under a prompt drawn at
    random (logsumexp over the prompts minus log N), I = mean(m - q). It is at most log N; small negative values are
    noise. For figures per token, divide `log_likelihood` by the lengths of the thoughts first.

    Args:
        log_likelihood: float `[M, N]`, log p(thought i | prompt j) of M thoughts under N distinct prompts, in nats.
        own: int64 `[M]`, the column of each thought's own prompt.
        ks: for which k to report retrieval@k.
        spread: standard deviation of q to scale z by, usually a running mean (`running_mean`); None takes that of
            this call.

    Returns:
        mi, mi_ceiling (log N), conditional_entropy H(Z|X) = -mean m, marginal_entropy H(Z) = -mean q, spread (the
        unbiased standard deviation of q), z = mean((m - q) / (spread + 1e-3)), margin (mean of m minus the best other
        prompt), retrieval@k (how often the own prompt is among the k likeliest; ties share their places), chance@k.
    """
    thoughts, prompts = log_likelihood.shape
    scores = log_likelihood.double()
    matched = scores.gather(1, own[:, None])
    marginal = torch.logsumexp(scores, dim=1, keepdim=True) - math.log(prompts)
    gain = matched - marginal
    std = float(marginal.std()) if thoughts > 1 else 0.0
    metrics: Metrics = {
        "mi": float(gain.mean()),
        "mi_ceiling": math.log(prompts),
        "conditional_entropy": -float(matched.mean()),
        "marginal_entropy": -float(marginal.mean()),
        "spread": std,
        "z": float(gain.mean()) / ((std if spread is None else spread) + 1e-3),
    }
    if prompts > 1:
        others = scores.scatter(1, own[:, None], -math.inf)
        metrics["margin"] = float((matched - others.max(dim=1, keepdim=True).values).mean())
    better = (scores > matched).sum(dim=1)
    equal = (scores == matched).sum(dim=1)
    for k in ks:
        if k <= prompts:
            # A policy that ignores its prompt scores all prompts alike; sharing places gives it chance level, not 1.
            metrics[f"retrieval@{k}"] = float(((k - better) / equal).clamp(0, 1).mean())
            metrics[f"chance@{k}"] = k / prompts
    return metrics


def running_mean(previous: float | None, value: float, decay: float = 0.9) -> float:
    """Exponential moving average; `value` itself if there is no previous one."""
    return value if previous is None else decay * previous + (1 - decay) * value

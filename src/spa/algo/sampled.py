"""The distribution that tokens are sampled from, and importance weights between it and the trained
policy."""

from typing import Literal

import torch
from torch import Tensor

from spa.algo.masked import masked_mean
from spa.types import Metrics, SamplingParams

Level = Literal["off", "token", "sequence"]
Mode = Literal["truncate", "mask"]


def policy_logits(logits: Tensor, sampling: SamplingParams, keep: Tensor | None = None) -> Tensor:
    """Return logits `[N, V]` whose softmax is the distribution that `sampling` samples from.

    Logits are divided by the temperature, then set to minus infinity outside the top-k set, and
    then outside the smallest set whose mass reaches top_p. `keep` int64 `[N]` is one token per row
    that is never excluded, so that a token sampled with other weights or in another precision has a
    finite log-prob. For greedy sampling (temperature 0), which has no such distribution, the logits
    are returned unchanged.
    """
    if sampling.temperature == 0:
        return logits
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    kept = logits
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        # All ties with the k-th logit stay, since `topk` lists an arbitrary one of them.
        kept = logits.masked_fill(logits < smallest, float("-inf"))
    if sampling.top_p < 1:
        ordered, order = kept.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        # Each token is judged by the mass before it, so that the token that crosses top_p is kept.
        outside = probs.cumsum(-1) - probs >= sampling.top_p
        kept = kept.masked_fill(
            torch.zeros_like(outside).scatter(-1, order, outside), float("-inf")
        )
    # With the current weights, top_k or top_p may exclude the sampled token. It is kept, so that
    # its log-prob is finite.
    if keep is not None and kept is not logits:
        kept = kept.scatter(-1, keep[:, None], logits.gather(-1, keep[:, None]))
    return kept


def rollout_weights(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    mask: Tensor,
    *,
    level: Level,
    mode: Mode,
    cap: float,
    floor: float,
) -> tuple[Tensor | None, Metrics]:
    """Importance weights of tokens that another sampler generated, for the policy loss.

    The weight is w = exp(logprobs - sampler_logprobs) of the token or, with level `sequence`, the
    product of w over all sampled tokens of the episode. Mode `truncate` uses min(w, cap) (truncated
    importance sampling, as in verl's rollout correction); `mask` uses w inside [floor, cap] and 0
    outside (IcePop).

    Args:
        logprobs: `[B, A]`, of the policy that is about to be updated.
        sampler_logprobs: `[B, A]`, log-probs under the distribution that the engine sampled from.
        mask: bool `[B, A]`, the sampled tokens.
        level: whether a weight is computed per token or per sequence; off returns None instead of
            weights, with metrics per token.
        mode: truncate or mask extreme weights.
        cap: the largest weight.
        floor: the smallest weight that `mask` keeps.

    Returns:
        float32 `[B, A]`, 1 outside the mask, or None. Metrics over the mask: rollout/is_mean and is_max of w,
        is_outside (share beyond cap, with `mask` also below floor), is_ess (effective sample size as a share).
    """
    difference = torch.where(mask, logprobs - sampler_logprobs, 0.0)
    if level == "sequence":
        # The ratio of an episode is the product of its tokens' ratios.
        difference = difference.sum(dim=1, keepdim=True).expand_as(difference)
    weights = torch.where(mask, difference.clamp(-20.0, 20.0).exp(), 1.0)
    outside = weights > cap
    if mode == "mask":
        outside = outside | (weights < floor)
    total = weights[mask].sum()
    squares = weights[mask].square().sum()
    metrics: Metrics = {
        "rollout/is_mean": float(masked_mean(weights, mask)),
        "rollout/is_max": float(weights[mask].max()) if mask.any() else 1.0,
        "rollout/is_outside": float(masked_mean(outside.float(), mask)),
        # (sum w)^2 / (n sum w^2): 1 for equal weights, 1 / n if one token has all the weight.
        "rollout/is_ess": float(total.square() / (squares * mask.sum()).clamp(min=1e-12)),
    }
    if level == "off":
        return None, metrics
    weights = torch.where(outside, 0.0, weights) if mode == "mask" else weights.clamp(max=cap)
    return torch.where(mask, weights, 1.0), metrics

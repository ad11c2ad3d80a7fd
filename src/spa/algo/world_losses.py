"""Losses on the world while the policy is trained, each with a denominator of its own. Equations
and sources: docs/methods.md.

As in `spa.algo.losses`, a loss is sum(weights * per-token loss), with weights that belong to the
whole mini-batch of all ranks, so that neither the number of sampled tokens nor the cut into
micro-batches changes them.
"""

import torch
from torch import Tensor


def auxiliary_weights(weights: Tensor) -> Tensor:
    """`weights` `[B, A]` of a whole mini-batch divided by the number of its tokens that have one;
    all 0 if none has."""
    return weights / (weights > 0).sum().clamp(min=1)


def cross_entropy(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of -log p over the tokens of weight > 0 (ECHO, arXiv 2605.24517). Both `[b, A]`
    -> scalar."""
    return -(weights * torch.where(weights > 0, logprobs, 0.0)).sum()


def clipped_absolute_error(logprobs: Tensor, weights: Tensor, *, most: float) -> Tensor:
    """Weighted sum of min(1 - p, most) over the tokens of weight > 0: what cannot be predicted
    pulls no further than `most` (PaW, arXiv 2606.02388; reconstructed). The gradient of 1 - p is p
    (1 - p): it cannot start from ignorance. Both `[b, A]` -> scalar."""
    # Where 1 - p exceeds `most`, the clamp leaves no gradient.
    error = (1 - torch.where(weights > 0, logprobs, 0.0).exp()).clamp(max=most)
    return (weights * error).sum()


def uncertain_turns(entropy: Tensor, turns: Tensor, answers: Tensor, *, share: float) -> Tensor:
    """bool `[B, A]`: the environment's tokens after those turns whose answers were the least
    certain (PaW's selection, reconstructed): the `share` of all turns with the highest mean entropy
    of the answer's tokens, at least one.

    Args:
        entropy: `[B, A]`, of the policy at each predicted token.
        turns: int64 `[B, A]`, the turn of each token, -1 outside; the environment's words belong to the turn that they
            open.
        answers: bool `[B, A]`, the tokens of the answers.
        share: of the turns that a state follows, in (0, 1].

    Returns:
        True on every token of the turn that follows a chosen turn.
    """
    # The extra last column collects the tokens outside answers and is cut off below.
    width = int(turns.max()) + 2
    place = torch.where(answers, turns, width - 1)
    shape = (len(turns), width)
    sums = torch.zeros(shape, dtype=torch.float64).scatter_add_(
        1, place, torch.where(answers, entropy.double(), 0.0)
    )
    counts = torch.zeros(shape, dtype=torch.float64).scatter_add_(1, place, answers.double())
    means = (sums / counts.clamp(min=1))[:, :-1]
    # No state follows the last turn of an episode.
    last = turns.max(dim=1, keepdim=True).values
    known = (counts > 0)[:, :-1] & (torch.arange(width - 1, device=turns.device) < last)
    count = int(known.sum())
    if count == 0:
        return torch.zeros_like(answers)
    kept = max(1, round(share * count))
    threshold = means[known].sort(descending=True).values[kept - 1]
    # Ties with the last chosen turn are chosen as well.
    chosen = known & (means >= threshold)
    # The environment answers turn t with the tokens that open turn t + 1.
    following = torch.where(turns > 0, turns - 1, 0)
    return (turns > 0) & chosen.gather(1, following)


def focus_weights(
    mask: Tensor, answers: Tensor, entropy: Tensor, *, alpha: float, beta: float
) -> Tensor:
    """float32 `[B, A]`: how much each sampled token counts (ActFocus, arXiv 2605.14558;
    reconstructed). `alpha` outside the answers, 1 + `beta` H / mean H on an answer's token of
    entropy H, scaled so that they sum to the number of sampled tokens; 0 outside the mask.

    Args:
        mask, answers: bool `[B, A]`.
        entropy: `[B, A]`.
        alpha: weight of a token outside the answers before scaling; 0 trains the answers alone.
        beta: how much an uncertain token of an answer counts more.
    """
    inside = mask & answers
    mean = torch.where(inside, entropy, 0.0).sum() / inside.sum().clamp(min=1)
    raw = torch.where(inside, 1 + beta * entropy / mean.clamp(min=1e-8), alpha) * mask
    # The mean weight stays 1, so that the learning rate keeps its meaning.
    return (raw * mask.sum() / raw.sum().clamp(min=1e-8)).float()

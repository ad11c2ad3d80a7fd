"""Policy and value losses, the KL penalty and its controller, the auxiliary world losses, and
importance weights for tokens that another policy sampled.

Every loss is sum(weights * per-token loss). `weights` `[b, A]` are from `loss_weights`. They are
computed for the mini-batch of all ranks, so that the gradient does not depend on its division into
micro-batches. Tokens of weight 0 are never read. The returned `info` has sums over the tokens of
weight > 0, and the number of these tokens as "tokens". To get means, add the infos of all
micro-batches and ranks, then divide by "tokens".

The world losses are trained together with the policy loss. Each has its own denominator, taken over
the whole mini-batch of all ranks. Equations and sources: docs/methods.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from spa.algo.masked import masked_mean
from spa.errors import ConfigError
from spa.plugins import load_setting, settings_of
from spa.types import Metrics

LossAggMode = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
CorrectionLevel = Literal["off", "token", "sequence"]
CorrectionMode = Literal["truncate", "mask"]
KLKind = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]
Info = Mapping[str, Tensor]


def loss_units(mask: Tensor, mode: LossAggMode) -> Tensor:
    """Count the units that `mode` averages over, given `mask` bool `[B, A]`: tokens, or rows with
    at least one token.

    For a whole mini-batch, this is the `total` of `loss_weights`. Returns an int64 scalar tensor.
    """
    return mask.sum() if mode == "token-mean" else mask.any(dim=1).sum()


def loss_weights(
    mask: Tensor, mode: LossAggMode, total: Tensor | float, *, horizon: int | None = None
) -> Tensor:
    """Compute the weight of each token in the loss of the global mini-batch.

    Args:
        mask: bool `[B, A]`, for all or some rows of the mini-batch.
        mode: token-mean (every token counts the same), seq-mean-token-mean (every row counts the same),
            seq-mean-token-sum (rows count by their length), seq-mean-token-sum-norm (the same divided by `horizon`,
            Dr. GRPO arXiv 2503.20783).
        total: `loss_units` summed over all rows of the mini-batch on all ranks; 0 gives weights 0.
        horizon: for seq-mean-token-sum-norm, a constant number of tokens (the longest response that the run allows).

    Returns:
        float32 `[B, A]`, 0 outside the mask. With the two modes that end in `mean` they sum to 1
        over the mini-batch.

    Raises:
        ValueError: the mode is unknown, or `horizon` is missing for seq-mean-token-sum-norm.
    """
    weights = mask.float() / torch.as_tensor(total, device=mask.device).clamp(min=1)
    match mode:
        case "token-mean" | "seq-mean-token-sum":
            return weights
        case "seq-mean-token-mean":
            return weights / mask.sum(dim=1, keepdim=True).clamp(min=1)
        case "seq-mean-token-sum-norm":
            if horizon is None:
                raise ValueError(
                    "loss_weights: the mode seq-mean-token-sum-norm needs the argument "
                    "horizon, the number of tokens to divide by"
                )
            return weights / horizon
    raise ValueError(
        f"loss_weights: unknown mode {mode!r}; use token-mean, seq-mean-token-sum, "
        "seq-mean-token-mean or seq-mean-token-sum-norm"
    )


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_c: float | None = 3.0,
) -> tuple[Tensor, Info]:
    """PPO's clipped surrogate (arXiv 1707.06347) with asymmetric clip range (arXiv 2503.14476) and
    dual clip (arXiv 1912.09729).

    Per token: max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)) with r = exp(new - old), and at
    most -A clip_c where A < 0.

    Args:
        logprobs: `[b, A]`, log-probs of the policy being trained; gradients flow through them.
        old_logprobs: `[b, A]`, log-probs of the policy before this step's updates.
        advantages: `[b, A]`.
        weights: `[b, A]`, see the module docstring.
        clip_low: the ratio is clipped at 1 - clip_low from below.
        clip_high: the ratio is clipped at 1 + clip_high from above.
        clip_c: bound on the ratio for negative advantages; None switches it off.

    Returns:
        The loss, and sums: pg_clipfrac and pg_clipfrac_lower (tokens where the clip and the dual
        clip act), ppo_kl (old - new log-prob), tokens.
    """
    # Entries of weight 0 may have any value, even NaN, so they are cleared before `exp`.
    live = weights > 0
    # exp(20) is far outside every clip range and finite in float32 and bfloat16.
    log_ratio = torch.where(live, logprobs - old_logprobs, 0.0).clamp(-20.0, 20.0)
    ratio = log_ratio.exp()
    advantages = torch.where(live, advantages, 0.0)
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    # The larger of the two losses is used, so that clipping removes the incentive to move the ratio
    # further from 1, but never the gradient that moves it back.
    per_token = torch.maximum(unclipped, clipped)
    lower = torch.zeros_like(live)
    # For A < 0, the loss -A r grows with the ratio without bound. The dual clip limits it to -A c.
    if clip_c is not None:
        bound = -advantages * clip_c
        lower = (advantages < 0) & (per_token > bound)
        per_token = torch.where(lower, bound, per_token)
    info = {
        "pg_clipfrac": (clipped > unclipped).sum(),
        "pg_clipfrac_lower": lower.sum(),
        "ppo_kl": -log_ratio.detach().sum(),
        "tokens": live.sum(),
    }
    return (weights * per_token).sum(), info


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """A policy loss.

    `function` maps (logprobs, old_logprobs, advantages, weights, **settings) to (loss, info), like
    `policy_loss`. `settings` maps each keyword parameter of the function to the key of the section
    `actor_rollout_ref.actor` that provides its value.
    """

    function: Callable[..., tuple[Tensor, Info]]
    settings: Mapping[str, str]

    def compute(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        weights: Tensor,
        settings: object,
    ) -> tuple[Tensor, Info]:
        """Compute the loss and its info (sums over tokens). `settings` is the configuration section
        with the function's settings."""
        chosen: dict[str, Any] = {
            name: getattr(settings, key) for name, key in self.settings.items()
        }
        return self.function(logprobs, old_logprobs, advantages, weights, **chosen)


POLICY_LOSSES: dict[str, PolicyLoss] = {
    "ppo": PolicyLoss(
        function=policy_loss,
        settings={
            "clip_low": "clip_ratio_low",
            "clip_high": "clip_ratio_high",
            "clip_c": "clip_ratio_c",
        },
    )
}


def policy_loss_named(name: str, known: frozenset[str] | set[str]) -> PolicyLoss:
    """Return the loss that `actor_rollout_ref.actor.policy_loss` names: a key of `POLICY_LOSSES`,
    or the `package.module:name` of a `PolicyLoss` or a function.

    A function receives the settings that its keyword-only parameters name. `known` are the keys of
    the section `actor_rollout_ref.actor`.

    Raises ConfigError for an unknown name, a module that does not load, or a setting that does not
    exist.
    """
    key = "actor_rollout_ref.actor.policy_loss"
    if name in POLICY_LOSSES:
        return POLICY_LOSSES[name]
    chosen = load_setting(key, name, POLICY_LOSSES)
    if not isinstance(chosen, PolicyLoss):
        if not callable(chosen):
            raise ConfigError(f"{key}: {name!r} must name a PolicyLoss or a function")
        function = cast(Callable[..., tuple[Tensor, Info]], chosen)
        chosen = PolicyLoss(
            function=function, settings={setting: setting for setting in settings_of(function)}
        )
    unknown = [setting for setting in chosen.settings.values() if setting not in known]
    if unknown:
        raise ConfigError(
            f"{key}: {name!r} has the argument {unknown[0]!r}, but the section of {key} has no such "
            "setting; rename the argument"
        )
    return chosen


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, weights: Tensor, *, clip: float | None
) -> tuple[Tensor, Info]:
    """Compute half the squared error of the critic, optionally with clipped values.

    With `clip`, the squared error of a token is the larger of two errors: the error of the value,
    and the error of the value clipped to within `clip` of the old value. If `clip` is much smaller
    than the returns, the critic cannot learn. Then change the scale of one of them, or pass None.

    Args:
        values: `[b, A]`, gradients flow through them.
        old_values: `[b, A]`.
        returns: `[b, A]`.
        weights: `[b, A]`, see the module docstring.
        clip: in units of the returns, or None.

    Returns:
        The loss, and sums: vf_clipfrac (tokens where the clip acts), vpred_mean (values), tokens.
    """
    live = weights > 0
    values, old_values, returns = (
        torch.where(live, part, 0.0) for part in (values, old_values, returns)
    )
    error = (values - returns).square()
    clip_active = torch.zeros_like(live)
    if clip is not None:
        # Values are clipped around the old values, so that one step cannot change the critic too
        # much.
        clipped_values = old_values + (values - old_values).clamp(-clip, clip)
        clipped = (clipped_values - returns).square()
        clip_active = clipped > error
        error = torch.maximum(error, clipped)
    info = {
        "vf_clipfrac": clip_active.sum(),
        "vpred_mean": values.detach().sum(),
        "tokens": live.sum(),
    }
    return 0.5 * (weights * error).sum(), info


def entropy_bonus(entropy: Tensor, weights: Tensor) -> Tensor:
    """Compute the weighted mean entropy. The caller multiplies it by its coefficient and subtracts
    it from the loss. Both `[b, A]` -> scalar."""
    return (weights * torch.where(weights > 0, entropy, 0.0)).sum()


def kl_penalty(logprobs: Tensor, ref_logprobs: Tensor, kind: KLKind) -> Tensor:
    """Estimate KL(policy || reference) per token, from the log-probs of the sampled token
    (Schulman, "Approximating KL divergence").

    Kinds: kl or k1 (the difference of log-probs), abs, mse or k2 (half the squared difference),
    low_var_kl or k3 (exp(d) - d - 1 with d = reference - policy, d clamped to +-20 and the result
    to +-10). Both arguments and the result are `[b, A]`.

    All but abs and mse are unbiased (before clamping). As loss terms, only mse has the gradient of
    the KL divergence; the gradient of kl is 0 on average.

    Raises:
        ValueError: the kind is unknown.
    """
    difference = logprobs - ref_logprobs
    match kind:
        case "kl" | "k1":
            return difference
        case "abs":
            return difference.abs()
        case "mse" | "k2":
            return 0.5 * difference.square()
        case "low_var_kl" | "k3":
            # exp(d) would overflow if a token is far more likely under the reference than under the
            # policy.
            d = (-difference).clamp(-20.0, 20.0)
            return (d.exp() - d - 1).clamp(-10.0, 10.0)
    raise ValueError(f"kl_penalty: unknown kind {kind!r}; use kl, abs, mse or low_var_kl")


@dataclass(frozen=True, slots=True, kw_only=True)
class KLController:
    """Coefficient of the KL penalty: fixed if `target` is None, and adaptive otherwise (arXiv
    1909.08593, section 2.2)."""

    coef: float
    target: float | None = None  # KL to reach, in nats per token
    # Number of episodes in which the coefficient can change by a factor of at most about e^0.2.
    horizon: int = 10_000

    def update(self, kl: float, episodes: int) -> "KLController":
        """Return the controller after a step of `episodes` episodes whose mean per-token KL was
        `kl`.

        The coefficient grows above the target and shrinks below it, by at most 20 % times episodes
        / horizon.
        """
        if self.target is None:
            return self
        # The error is clipped, so that a single step with a large KL cannot multiply the
        # coefficient.
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        return replace(self, coef=self.coef * (1 + error * episodes / self.horizon))


def kl_in_reward(
    rewards: Tensor,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor,
    *,
    coef: float,
    kind: KLKind,
) -> tuple[Tensor, Tensor]:
    """Subtract `coef` times the per-token KL estimate `kind` from the rewards.

    Args:
        rewards: `[B, A]`.
        logprobs: `[B, A]`, of the policy that is about to be updated.
        ref_logprobs: `[B, A]`, of the reference policy.
        mask: bool `[B, A]`.
        coef: current coefficient of the controller.
        kind: see `spa.algo.losses.kl_penalty`.

    Returns:
        rewards `[B, A]`, and the KL estimate `[B, A]`, 0 outside the mask, whose mean goes to `KLController.update`.
    """
    kl = torch.where(mask, kl_penalty(logprobs, ref_logprobs, kind), 0.0)
    # The penalty is subtracted at each sampled token, not at the end of the episode.
    return rewards - coef * kl, kl


def auxiliary_weights(weights: Tensor) -> Tensor:
    """Divide `weights` `[B, A]` of a whole mini-batch by the number of its tokens with a positive
    weight; all 0 if there are none."""
    return weights / (weights > 0).sum().clamp(min=1)


def cross_entropy(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Compute the weighted sum of -log p over the tokens of weight > 0 (ECHO, arXiv 2605.24517).
    Both `[b, A]` -> scalar."""
    return -(weights * torch.where(weights > 0, logprobs, 0.0)).sum()


def clipped_absolute_error(logprobs: Tensor, weights: Tensor, *, most: float) -> Tensor:
    """Compute the weighted sum of min(1 - p, most) over the tokens of weight > 0 (PaW, arXiv
    2606.02388; reconstructed). Both `[b, A]` -> scalar.

    Unpredictable tokens contribute at most `most`. The gradient vanishes as p goes to 0, so the
    loss cannot teach tokens that are almost impossible under the model.
    """
    # If 1 - p exceeds `most`, the gradient is 0.
    error = (1 - torch.where(weights > 0, logprobs, 0.0).exp()).clamp(max=most)
    return (weights * error).sum()


def uncertain_turns(entropy: Tensor, turns: Tensor, answers: Tensor, *, share: float) -> Tensor:
    """Select the environment's tokens after the turns with the least certain answers (PaW's
    selection, reconstructed). Returns bool `[B, A]`.

    An answer is less certain if the mean entropy of its tokens is higher. The fraction `share` of
    turns is chosen, but at least one turn.

    Args:
        entropy: `[B, A]`, entropy of the policy at each predicted token.
        turns: int64 `[B, A]`, the turn of each token, -1 outside; environment text belongs to the
            turn that it opens.
        answers: bool `[B, A]`, True on the tokens of the answers.
        share: share of the turns that are followed by a state, in (0, 1].

    Returns:
        True on every token of the turn that follows a chosen turn.
    """
    # The last column is extra. It collects the tokens outside answers, and is removed below.
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
    # The tokens that open turn t + 1 are the environment's response to turn t.
    following = torch.where(turns > 0, turns - 1, 0)
    return (turns > 0) & chosen.gather(1, following)


def focus_weights(
    mask: Tensor, answers: Tensor, entropy: Tensor, *, alpha: float, beta: float
) -> Tensor:
    """Compute the weight of each sampled token (ActFocus, arXiv 2605.14558; reconstructed). Returns
    float32 `[B, A]`, 0 outside the mask.

    The weight is `alpha` outside the answers, and 1 + `beta` H / mean H for an answer token of
    entropy H. All weights are then scaled so that their sum is the number of sampled tokens.

    Args:
        mask, answers: bool `[B, A]`.
        entropy: `[B, A]`.
        alpha: weight of a token outside the answers before scaling; 0 trains the answers alone.
        beta: extra weight of uncertain answer tokens.
    """
    inside = mask & answers
    mean = torch.where(inside, entropy, 0.0).sum() / inside.sum().clamp(min=1)
    raw = torch.where(inside, 1 + beta * entropy / mean.clamp(min=1e-8), alpha) * mask
    # The mean weight is 1, so that the learning rate keeps its meaning.
    return (raw * mask.sum() / raw.sum().clamp(min=1e-8)).float()


def rollout_weights(
    logprobs: Tensor,
    sampler_logprobs: Tensor,
    mask: Tensor,
    *,
    level: CorrectionLevel,
    mode: CorrectionMode,
    cap: float,
    floor: float,
) -> tuple[Tensor | None, Metrics]:
    """Compute importance weights for the policy loss on tokens that another policy sampled.

    The weight is w = exp(logprobs - sampler_logprobs) of the token or, with level `sequence`, the
    product of w over all sampled tokens of the episode. Mode `truncate` uses min(w, cap) (truncated
    importance sampling, as in verl's rollout correction); `mask` uses w inside [floor, cap] and 0
    outside (IcePop).

    Args:
        logprobs: `[B, A]`, of the policy that is about to be updated.
        sampler_logprobs: `[B, A]`, log-probs under the distribution that the engine sampled from.
        mask: bool `[B, A]`, the sampled tokens.
        level: compute weights per token or per sequence; off returns None instead of
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

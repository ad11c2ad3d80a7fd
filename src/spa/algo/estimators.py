"""Registry of the advantage estimators by name, with their inputs and the post-processing of their
results.

A custom estimator is an `Estimator` or a plain function. The configuration names it as
`module:name`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from spa.algo.advantages import (
    Estimate,
    gae,
    grpo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
)
from spa.algo.advantages import bi_level_gae as two_levels
from spa.algo.turn_credit import gigpo, turn_gae, turn_rloo
from spa.errors import ConfigError
from spa.plugins import load_setting, settings_of
from spa.types import ScoredBatch

KEY = "algorithm.adv_estimator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """An advantage estimator.

    `function` maps (batch, rewards, **settings) to (advantages, returns), all `[B, A]`. The rewards
    are normalized, and include the KL penalty if that is part of the reward. `settings` are the
    keys of the section `algorithm` that are passed to `function`.
    """

    # The wrappers below read the inputs of the built-in estimators from the batch.
    function: Callable[..., Estimate]
    settings: tuple[str, ...] = ()
    needs_values: bool = False  # if True, a critic is trained, and `batch.values` are its values
    # True if the estimator compares episodes of one puzzle, so that a group of one gives no signal.
    needs_groups: bool = False
    # True if advantages are whitened over the masked tokens of the whole batch before the update,
    # provided that `algorithm.whiten_advantages` is set.
    whitened: bool = False
    discounts: Callable[[Mapping[str, Any]], tuple[float, float]] = lambda settings: (1.0, 1.0)
    """Maps the settings to the two discounts of returns: between tokens of a turn, and from a
    turn's last token to the next turn. Reward normalization uses them."""
    # True if the estimator itself subtracts group means, so that `normalize_rewards` does not.
    centres: bool = False

    def settings_from(self, section: object) -> dict[str, Any]:
        """Read the values of the estimator's settings from the section `algorithm`."""
        return {key: getattr(section, key) for key in self.settings}

    def estimate(
        self, batch: ScoredBatch, rewards: Tensor, settings: Mapping[str, Any]
    ) -> Estimate:
        """Compute advantages and returns, 0 outside the mask and not whitened. `settings` must
        contain every key in `self.settings`.

        Raises ConfigError if the estimator needs a critic and the batch has no values, or if a
        result does not have the shape of `rewards`.
        """
        if self.needs_values and batch.values is None:
            raise ConfigError(
                f"{KEY}: the estimator needs a critic, but the batch has no critic values; "
                "choose an estimator without a critic or add values to the batch"
            )
        results = self.function(batch, rewards, **{name: settings[name] for name in self.settings})
        for label, value in zip(("advantages", "returns"), results, strict=True):
            if value.shape != rewards.shape:
                raise ConfigError(
                    f"{KEY}: the estimator returned {label} of shape {tuple(value.shape)}; "
                    f"return the shape of rewards, {tuple(rewards.shape)}"
                )
        # A user's function may return any values outside the mask, even NaN.
        advantages, returns = (torch.where(batch.mask, value, 0.0) for value in results)
        return advantages, returns


def estimator_named(name: str, known: frozenset[str] | set[str]) -> Estimator:
    """Return the estimator that `algorithm.adv_estimator` names: a key of `ESTIMATORS`, or the
    `package.module:name` of an `Estimator` or a function.

    A function receives the settings that its keyword-only parameters name. No critic is trained for
    it, and its advantages are not whitened. `known` are the keys of the section `algorithm`.

    Raises ConfigError for an unknown name, a module that does not load, or a setting that does not
    exist.
    """
    estimator = ESTIMATORS.get(name) or _own(name)
    # Check the settings before a run starts, so that a misspelt key does not waste a rollout.
    unknown = [setting for setting in estimator.settings if setting not in known]
    if unknown:
        raise ConfigError(
            f"{KEY}: {name!r} has the keyword {unknown[0]!r}, which is no key of the section "
            f"algorithm; use one of {', '.join(sorted(known))}"
        )
    return estimator


def _own(name: str) -> Estimator:
    loaded = load_setting(KEY, name, ESTIMATORS)
    if isinstance(loaded, Estimator):
        return loaded
    if not callable(loaded):
        raise ConfigError(f"{KEY}: {name!r} must name an Estimator or a function")
    function = cast(Callable[..., Estimate], loaded)
    return Estimator(function=function, settings=settings_of(function))


def _outcomes(batch: ScoredBatch, rewards: Tensor) -> Tensor:
    # The outcome of an episode is the sum of its rewards over all tokens.
    return torch.where(batch.mask, rewards, 0.0).sum(dim=1)


def _gae(
    batch: ScoredBatch,
    rewards: Tensor,
    *,
    gamma: float,
    lam: float,
    bi_level_gae: bool,
    high_level_gamma: float,
) -> Estimate:
    assert batch.values is not None
    if bi_level_gae:
        return two_levels(
            rewards, batch.values, batch.mask, batch.turn_ends, gamma, lam, high_level_gamma
        )
    return gae(rewards, batch.values, batch.mask, gamma, lam)


def _grpo(batch: ScoredBatch, rewards: Tensor, *, norm_adv_by_std_in_grpo: bool) -> Estimate:
    return grpo(_outcomes(batch, rewards), batch.group_ids, batch.mask, norm_adv_by_std_in_grpo)


def _rloo(batch: ScoredBatch, rewards: Tensor) -> Estimate:
    return rloo(_outcomes(batch, rewards), batch.group_ids, batch.mask)


def _reinforce_plus_plus(batch: ScoredBatch, rewards: Tensor, *, gamma: float) -> Estimate:
    return reinforce_plus_plus(rewards, batch.mask, gamma)


def _reinforce_plus_plus_baseline(batch: ScoredBatch, rewards: Tensor) -> Estimate:
    return reinforce_plus_plus_baseline(_outcomes(batch, rewards), batch.group_ids, batch.mask)


def _turn_rloo(batch: ScoredBatch, rewards: Tensor, *, high_level_gamma: float) -> Estimate:
    return turn_rloo(rewards, batch.turns, batch.mask, batch.group_ids, high_level_gamma)


def _turn_gae(
    batch: ScoredBatch, rewards: Tensor, *, high_level_gamma: float, lam: float
) -> Estimate:
    assert batch.values is not None
    return turn_gae(rewards, batch.values, batch.turns, batch.mask, high_level_gamma, lam)


def _gigpo(
    batch: ScoredBatch,
    rewards: Tensor,
    *,
    high_level_gamma: float,
    gigpo_step_weight: float,
) -> Estimate:
    assert batch.anchors is not None
    return gigpo(
        rewards,
        batch.turns,
        batch.mask,
        batch.group_ids,
        batch.anchors,
        gamma=high_level_gamma,
        step_weight=gigpo_step_weight,
    )


def _per_turn(settings: Mapping[str, Any]) -> tuple[float, float]:
    # All tokens of a turn have the same advantage, so only the step to the next turn is discounted.
    return 1.0, settings["high_level_gamma"]


ESTIMATORS: dict[str, Estimator] = {
    "gae": Estimator(
        function=_gae,
        settings=("gamma", "lam", "bi_level_gae", "high_level_gamma"),
        needs_values=True,
        whitened=True,
        discounts=lambda s: (
            s["gamma"],
            s["high_level_gamma"] if s["bi_level_gae"] else s["gamma"],
        ),
    ),
    "grpo": Estimator(function=_grpo, settings=("norm_adv_by_std_in_grpo",), needs_groups=True),
    "rloo": Estimator(function=_rloo, needs_groups=True),
    "reinforce_plus_plus": Estimator(
        function=_reinforce_plus_plus,
        settings=("gamma",),
        whitened=True,
        discounts=lambda s: (s["gamma"], s["gamma"]),
    ),
    "reinforce_plus_plus_baseline": Estimator(
        function=_reinforce_plus_plus_baseline, needs_groups=True, whitened=True
    ),
    "turn_rloo": Estimator(
        function=_turn_rloo, settings=("high_level_gamma",), needs_groups=True, discounts=_per_turn
    ),
    "gigpo": Estimator(
        function=_gigpo,
        settings=("high_level_gamma", "gigpo_step_weight"),
        needs_groups=True,
        # GiGPO itself subtracts group means: of undiscounted outcomes for the episode, of discounted
        # returns for the turn.
        centres=True,
    ),
    "turn_gae": Estimator(
        function=_turn_gae,
        settings=("high_level_gamma", "lam"),
        needs_values=True,
        whitened=True,
        discounts=_per_turn,
    ),
}

"""Monitor the health of a PPO run: warn about slow failures early, and stop a run that no longer
learns.

Guards and `Health` are immutable: `guard.observe(...)` returns the guard after one more step. Its
`reason` is None unless there is something to warn about. Checkpoints store the guards, so a resumed
run gives the same warnings as an uninterrupted one.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StreakGuard:
    """Guard that trips after `limit` consecutive bad observations. A `limit` of 0 turns the guard
    off. `run` is the current number of consecutive bad observations."""

    limit: int
    advice: str
    run: int = 0

    def observe(self, bad: bool) -> "StreakGuard":
        """Return the guard after one more observation."""
        return replace(self, run=self.run + 1 if bad else 0)

    @property
    def reason(self) -> str | None:
        """Reason to stop, or None."""
        return (
            f"In {self.run} consecutive checks, {self.advice}"
            if 0 < self.limit <= self.run
            else None
        )


# The default limits of these guards come from RAGEN-2.
def empty_batch_guard(limit: int = 5) -> StreakGuard:
    """Guard against steps whose rollout filter kept no group: `observe(kept == 0)`."""
    advice = (
        "no group of episodes had differing scores, so the policy received no gradient. "
        "Read the episodes in trajectories/. If all episodes fail, start from a better "
        "model or an easier environment. If all episodes succeed, the task is solved"
    )
    return StreakGuard(limit=limit, advice=advice)


def low_success_guard(limit: int = 5) -> StreakGuard:
    """Guard against low validation success: `observe(success < LOW_SUCCESS)`."""
    advice = (
        f"validation success was below {LOW_SUCCESS:.0%}. Check that responses follow the format, "
        "then start from a better model or an easier environment"
    )
    return StreakGuard(limit=limit, advice=advice)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceGuard:
    """Guard that trips if the standard deviation of scores within groups is far below its initial
    value.

    The baseline is the mean of the first `window` observations. The guard trips after `patience`
    consecutive later observations below `fraction` of the baseline. With a baseline of 0, it never
    trips, because the standard deviation cannot get smaller. A `patience` of 0 turns the guard off.
    """

    window: int = 10
    patience: int = 10
    fraction: float = 0.1
    seen: int = 0
    total: float = 0.0  # sum of the first `window` observations
    run: int = 0

    def observe(self, std: float) -> "VarianceGuard":
        """Return the guard after one more update. `std` is the standard deviation of scores within
        groups, averaged over all groups."""
        if self.seen < self.window:
            return replace(self, seen=self.seen + 1, total=self.total + std)
        # The limit is relative to the start of the run, because the scale of scores depends on the
        # game.
        low = std < self.fraction * self.baseline
        return replace(self, seen=self.seen + 1, run=self.run + 1 if low else 0)

    @property
    def baseline(self) -> float:
        """Mean of the first `window` observations, or of all observations if there are fewer; 0
        without observations."""
        return self.total / max(min(self.seen, self.window), 1)

    @property
    def reason(self) -> str | None:
        """Reason to stop, or None."""
        if not 0 < self.patience <= self.run:
            return None
        return (
            f"For {self.run} updates, the standard deviation of scores within groups was "
            f"below {self.fraction:.0%} of its initial value ({self.baseline:.3g}). The "
            "policy reaches the same outcome whatever it samples. Raise the entropy bonus "
            "or the temperature, or resume from an earlier checkpoint"
        )


# A step is bad if its share of failed episodes reaches MANY_FAULTS, or its share of repetitive
# responses MUCH_REPETITION. A validation is bad if its success is below LOW_SUCCESS.
MANY_FAULTS = 0.5
MUCH_REPETITION = 0.2
LOW_SUCCESS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHealth:
    """Measurements of one step; None means not measured."""

    kept: int  # groups that the rollout filter kept
    spread: float  # mean standard deviation of the scores within groups
    success: float  # share of the training episodes that succeeded
    episodes: int  # number of training episodes
    faults: float  # share of the episodes that an environment or engine error ended
    repetition: float  # share of the responses that end in a loop
    validation: float | None = None  # share of the validation episodes that succeeded
    format: float | None = None  # share of the world-model responses that are well-formed
    observations: float | None = None  # share of the observations that are exactly correct
    predictions: float | None = None  # share of the predictions that are exactly correct


@dataclass(frozen=True, slots=True, kw_only=True)
class FallingGuard:
    """Guard that trips if training success has fallen: the mean over the last `window` steps is
    below half of the best such mean, and at least `errors` standard errors below it. It never trips
    if the best mean is below `floor`."""

    window: int = 5
    floor: float = 0.1
    errors: float = 4.0
    best: float = 0.0
    episodes: int = 0  # in the last step
    last: tuple[float, ...] = ()

    def observe(self, success: float, episodes: int) -> "FallingGuard":
        """Return the guard after one more step with `episodes` training episodes, of which the
        share `success` succeeded."""
        last = (*self.last, success)[-self.window :]
        # Only full windows count, because a lucky first step would set a level that later steps
        # cannot reach.
        best = max(self.best, sum(last) / len(last)) if len(last) == self.window else self.best
        return replace(self, last=last, best=best, episodes=episodes)

    @property
    def reason(self) -> str | None:
        """The warning, or None."""
        mean = sum(self.last) / max(1, len(self.last))
        if len(self.last) < self.window or self.best < self.floor or mean >= 0.5 * self.best:
            return None
        # The standard error of a success rate over the episodes of a window.
        noise = math.sqrt(self.best * (1 - self.best) / max(1, self.window * self.episodes))
        if self.best - mean < self.errors * noise:
            return None
        return (
            f"Training success over the last {self.window} steps fell to {mean:.0%}; its "
            f"best mean was {self.best:.0%}. Resume from an earlier checkpoint with a lower "
            "learning rate, or add a KL penalty to the reference model "
            "(actor_rollout_ref.actor.use_kl_loss with kl_loss_coef above 0 and "
            "kl_loss_type=low_var_kl)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftGuard:
    """Guard that trips if the mean of the last `window` shares is more than `drop` below the best
    such mean. The model is then losing a skill that it learned in fine-tuning and that PPO does not
    reward. `skill` describes the share in the warning."""

    skill: str = ""
    window: int = 5
    drop: float = 0.05
    best: float = 0.0
    last: tuple[float, ...] = ()

    def observe(self, share: float | None) -> "DriftGuard":
        """Return the guard after one more step. A share of None (not measured) changes nothing."""
        if share is None:
            return self
        last = (*self.last, share)[-self.window :]
        best = max(self.best, sum(last) / len(last)) if len(last) == self.window else self.best
        return replace(self, last=last, best=best)

    @property
    def reason(self) -> str | None:
        """The warning, or None."""
        mean = sum(self.last) / max(1, len(self.last))
        if len(self.last) < self.window or self.best - mean <= self.drop:
            return None
        return (
            f"Over the last {self.window} steps, {self.skill} fell to {mean:.0%}; its best "
            f"mean was {self.best:.0%}. PPO rewards only success, so the model loses this "
            "ability. Train on correct predictions (actor_rollout_ref.actor.world_loss) or "
            "on replayed true states (actor_rollout_ref.actor.replay). You can also lower "
            "actor_rollout_ref.actor.optim.lr, or add a KL penalty "
            "(actor_rollout_ref.actor.use_kl_loss with kl_loss_coef above 0 and "
            "kl_loss_type=low_var_kl)"
        )


def _format() -> DriftGuard:
    return DriftGuard(skill="the share of well-formed responses")


def _observations() -> DriftGuard:
    return DriftGuard(skill="the share of exactly correct observations", drop=0.1)


def _predictions() -> DriftGuard:
    return DriftGuard(skill="the share of exactly correct predictions", drop=0.2)


def _faults() -> StreakGuard:
    advice = (
        "at least half of the episodes failed with an error. Read the errors in log.txt and in "
        "trajectories/"
    )
    return StreakGuard(limit=3, advice=advice)


def _repetition() -> StreakGuard:
    advice = (
        f"at least {MUCH_REPETITION:.0%} of the responses ended in a loop of the same words. "
        "Lower the learning rate, resume from an earlier checkpoint, or raise the entropy "
        "bonus"
    )
    return StreakGuard(limit=3, advice=advice)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """All guards of a PPO run."""

    empty: StreakGuard = field(default_factory=empty_batch_guard)
    spread: VarianceGuard = field(default_factory=VarianceGuard)
    low: StreakGuard = field(default_factory=low_success_guard)
    faults: StreakGuard = field(default_factory=_faults)
    repetition: StreakGuard = field(default_factory=_repetition)
    falling: FallingGuard = field(default_factory=FallingGuard)
    format: DriftGuard = field(default_factory=_format)
    observations: DriftGuard = field(default_factory=_observations)
    predictions: DriftGuard = field(default_factory=_predictions)

    def observe(self, signs: StepHealth) -> "Health":
        """Return the guards after one more step."""
        return Health(
            empty=self.empty.observe(signs.kept == 0),
            # Without training episodes, as when all of them failed with an error, reward variance
            # and success are unknown.
            spread=self.spread.observe(signs.spread) if signs.episodes else self.spread,
            # The streak counts validations, not steps, because most steps have no validation.
            low=self.low
            if signs.validation is None
            else self.low.observe(signs.validation < LOW_SUCCESS),
            faults=self.faults.observe(signs.faults >= MANY_FAULTS),
            repetition=self.repetition.observe(signs.repetition >= MUCH_REPETITION),
            falling=self.falling.observe(signs.success, signs.episodes)
            if signs.episodes
            else self.falling,
            format=self.format.observe(signs.format),
            observations=self.observations.observe(signs.observations),
            predictions=self.predictions.observe(signs.predictions),
        )

    @property
    def reasons(self) -> dict[str, str]:
        """Current warnings by name."""
        guards = {
            "nothing_to_learn": self.empty,
            "collapsed_spread": self.spread,
            "low_success": self.low,
            "failing_episodes": self.faults,
            "repetition": self.repetition,
            "falling_success": self.falling,
            "falling_format": self.format,
            "falling_observations": self.observations,
            "falling_predictions": self.predictions,
        }
        return {name: guard.reason for name, guard in guards.items() if guard.reason is not None}

    def state(self) -> dict[str, Any]:
        """Return the guards as JSON-compatible data."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Health":
        """Restore the guards from the result of `state`. Counts and means come from `state`; limits
        and advice come from the current code."""
        fresh = cls()
        return cls(
            **{
                name: replace(getattr(fresh, name), run=state[name]["run"])
                for name in ("empty", "low", "faults", "repetition")
            },
            spread=replace(
                fresh.spread, **{key: state["spread"][key] for key in ("seen", "total", "run")}
            ),
            falling=replace(
                fresh.falling,
                best=state["falling"]["best"],
                episodes=state["falling"]["episodes"],
                last=tuple(state["falling"]["last"]),
            ),
            **{
                name: replace(
                    getattr(fresh, name), best=state[name]["best"], last=tuple(state[name]["last"])
                )
                for name in ("format", "observations", "predictions")
                # A checkpoint of an older version may lack these guards.
                if name in state
            },
        )

"""Reasons to stop a run that no longer learns, as small states that fold over the steps.

Each guard is immutable and plain data, so that it can be stored in a checkpoint: `guard =
guard.observe(...)`, then stop if `guard.reason` is not None.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class StreakGuard:
    """Trips after `limit` bad observations in a row; `limit` 0 switches it off."""

    limit: int
    advice: str
    run: int = 0

    def observe(self, bad: bool) -> "StreakGuard":
        """The guard after one more observation."""
        return replace(self, run=self.run + 1 if bad else 0)

    @property
    def reason(self) -> str | None:
        """Reason to stop, or None."""
        return (
            f"In {self.run} consecutive checks, {self.advice}"
            if 0 < self.limit <= self.run
            else None
        )


# The limits in this file are those of RAGEN-2.
def empty_batch_guard(limit: int = 5) -> StreakGuard:
    """For steps whose rollout filter kept no group: `observe(kept == 0)`."""
    advice = (
        "no group of episodes had differing scores, so the policy received no gradient. "
        "Read the episodes in trajectories/. If all episodes fail, start from a better "
        "model or an easier environment. If all episodes succeed, the task is solved"
    )
    return StreakGuard(limit=limit, advice=advice)


def low_success_guard(limit: int = 5, threshold: float = 0.01) -> StreakGuard:
    """For validations below `threshold`: `observe(success < threshold)`."""
    advice = (
        f"validation success was below {threshold:.0%}. Check that responses follow the format, "
        "then start from a better model or an easier environment"
    )
    return StreakGuard(limit=limit, advice=advice)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarianceGuard:
    """Trips when the in-group standard deviation of the scores stays far below that of the first
    updates.

    The baseline is the mean of the first `window` observations; `patience` later ones in a row
    below `fraction` of it trip the guard. A baseline of 0 never trips: there is nothing to fall
    from. `patience` 0 switches it off.
    """

    window: int = 10
    patience: int = 10
    fraction: float = 0.1
    seen: int = 0
    total: float = 0.0  # sum of the first `window` observations
    run: int = 0

    def observe(self, std: float) -> "VarianceGuard":
        """The guard after an update with mean in-group standard deviation `std` (over all groups)."""
        if self.seen < self.window:
            return replace(self, seen=self.seen + 1, total=self.total + std)
        # The limit is relative to the start of this run, since the unit of scores differs from game
        # to game.
        low = std < self.fraction * self.baseline
        return replace(self, seen=self.seen + 1, run=self.run + 1 if low else 0)

    @property
    def baseline(self) -> float:
        """Mean over the first observations so far; 0 before the first."""
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

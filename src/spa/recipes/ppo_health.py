"""Health checks of PPO: warn about learning problems, and stop if no episode can be played."""

import logging

from spa.algo.health import StepHealth
from spa.errors import TrainingError
from spa.recipes.ppo_models import Models
from spa.types import Episode, Metrics, StopReason

log = logging.getLogger(__name__)

MOST_EMPTY_STEPS = 3  # training ends after this many consecutive steps without a valid episode


def empty_steps(episodes: list[Episode], before: int) -> int:
    """Return the number of consecutive steps, up to this one, in which every episode failed.
    `before` is the same number for the previous step. Raises TrainingError if the number reaches
    MOST_EMPTY_STEPS."""
    if any(episode.stop is not StopReason.ERROR for episode in episodes):
        return 0
    if before + 1 == MOST_EMPTY_STEPS:
        raise TrainingError(
            f"In {before + 1} consecutive steps, every episode failed. The last error: "
            f"{episodes[0].error} Fix the environment, then repeat the same command to "
            "resume from the last checkpoint."
        )
    return before + 1


def warn_of_health(models: Models, step: int, metrics: Metrics) -> None:
    """Update `models.health` with the metrics of a step, and log a warning for each learning
    problem that begins at this step."""
    before = models.health.reasons
    models.health = models.health.observe(step_health(metrics))
    # Warn when a problem begins, not at every step that it lasts.
    for name, reason in models.health.reasons.items():
        if name not in before:
            log.warning("step %d: %s: %s", step, name, reason)


def step_health(metrics: Metrics) -> StepHealth:
    """Collect the values that health checks need from a step's metrics, averaged over all
    environments."""

    def pooled(prefix: str, name: str) -> float | None:
        """Mean of the metric over tags, weighted by episodes; None if no tag has it (base-format
        responses, for example, have no states)."""
        tags = {
            key.removeprefix(f"{prefix}/").removesuffix("/episodes")
            for key in metrics
            if key.startswith(f"{prefix}/") and key.endswith("/episodes")
        }
        counts = {
            tag: metrics[f"{prefix}/{tag}/episodes"]
            for tag in tags
            if f"{prefix}/{tag}/{name}" in metrics
        }
        total = sum(counts.values())
        return (
            sum(metrics[f"{prefix}/{tag}/{name}"] * count for tag, count in counts.items()) / total
            if total
            else None
        )

    # `/episodes` counts episodes without an error, `/errors` counts failed ones.
    played = sum(
        value
        for key, value in metrics.items()
        if key.startswith("train/") and key.endswith("/episodes")
    )
    faulty = sum(
        value
        for key, value in metrics.items()
        if key.startswith("train/") and key.endswith("/errors")
    )
    return StepHealth(
        kept=int(metrics.get("rollout/kept_count", 0)),
        spread=metrics.get("rollout/in_group_std", 0.0),
        success=pooled("train", "success") or 0.0,
        episodes=int(played),
        faults=faulty / max(1.0, played + faulty),
        repetition=pooled("train", "repetition") or 0.0,
        validation=pooled("val-env", "success"),
        format=pooled("train", "format_rate"),
        observations=pooled("train", "wm/obs_exact"),
        predictions=pooled("train", "wm/prediction_em"),
    )

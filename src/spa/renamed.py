"""Former names of our own settings, their values, metrics and verdicts. All are read for one
version: in configurations, and in what older runs wrote."""

from collections.abc import Mapping
from typing import Any

_PLANNERS = ("imagine", "generate.imagine")
_MIXTURE = "generate.mixture"

SETTINGS: Mapping[str, str] = {
    "agent_proxy.reply_order": "agent_proxy.response_format",
    "generate.rows_of": "generate.train_on",
    f"{_MIXTURE}.branched": f"{_MIXTURE}.counterfactual",
    f"{_MIXTURE}.scout": f"{_MIXTURE}.q_learning",
    **{f"{planner}.plans": f"{planner}.proposals" for planner in _PLANNERS},
    **{f"{planner}.spoil": f"{planner}.noise_prob" for planner in _PLANNERS},
}
"""Dotted key -> what it is called now."""

VALUES: Mapping[str, Mapping[str, str]] = {
    "sft.data.loss_on": {"response_and_shown": "act_obs"},
    "actor_rollout_ref.actor.replay.loss_on": {"response_and_shown": "act_obs"},
    "actor_rollout_ref.actor.world_loss.tokens": {
        "right_beliefs": "correct_predictions",
        "shown_states": "env_observations",
    },
    "generate.policy": {"branched": "counterfactual", "scout": "q_learning"},
    "generate.states": {"truth": "ground_truth", "believed": "model"},
    "generate.train_on": {"own_round": "current_round"},
    **{
        f"{planner}.proposals": {"drawn": "sampled", "every_action": "exhaustive"}
        for planner in _PLANNERS
    },
    **{f"{planner}.dynamics": {"learnt": "model", "oracle": "simulator"} for planner in _PLANNERS},
}
"""Dotted key, as it is called now -> former value -> value."""

METRICS: Mapping[str, str] = {
    "wm/pred_exact": "wm/prediction_em",
    "cut_off": "completions/clipped_ratio",
    "rollout/kl_trainer_sampler": "rollout/mismatch_kl",
    "rollout/zero_count": "rollout/groups_zero_std",
    **{f"{part}/skipped": f"{part}/nonfinite_steps" for part in ("train", "actor", "critic")},
}
"""End of a metric's name -> what it is called now."""


def current_metrics(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of `metrics.jsonl` with its metrics as they are called now."""
    found = dict(line)
    for old, new in METRICS.items():
        for key in [key for key in found if key == old or key.endswith(f"/{old}")]:
            found[key.removesuffix(old) + new] = found.pop(key)
    return found


def current_setting(key: str, value: Any) -> tuple[str, Any]:
    """A setting as it is called now."""
    name = SETTINGS.get(key, key)
    return name, VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value


def current_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys and values as they are called now."""
    return dict(current_setting(key, value) for key, value in settings.items())

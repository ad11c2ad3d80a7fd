"""Former names of our own settings, their values, metrics and verdicts. All are read for one
version: in configurations, and in what older runs wrote."""

from collections.abc import Mapping
from typing import Any

SETTINGS: Mapping[str, str] = {}
"""Dotted key -> what it is called now."""

VALUES: Mapping[str, Mapping[str, str]] = {
    "sft.data.loss_on": {"response_and_shown": "act_obs"},
    "actor_rollout_ref.actor.replay.loss_on": {"response_and_shown": "act_obs"},
}
"""Dotted key, as it is called now -> former value -> value."""


def current_setting(key: str, value: Any) -> tuple[str, Any]:
    """A setting as it is called now."""
    name = SETTINGS.get(key, key)
    return name, VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value


def current_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys and values as they are called now."""
    return dict(current_setting(key, value) for key, value in settings.items())

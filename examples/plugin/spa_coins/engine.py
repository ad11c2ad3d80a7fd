"""The engine `always_heads`: `actor_rollout_ref.rollout.name=always_heads`."""

from spa.engines.factory import EngineRequest
from spa.policies.scripted import ScriptedEngine, formatted


def always_heads(request: EngineRequest) -> ScriptedEngine:
    """Return an engine that answers `heads` to every prompt."""
    return ScriptedEngine(lambda prompt: formatted(prompt, "heads"), request.template)

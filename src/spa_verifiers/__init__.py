"""The name under which verifiers finds spa's games: `vf-eval spa-verifiers`. See
spa_integrations.export.verifiers."""

from spa_integrations.export.verifiers import ChatHarness, SpaEnv, SpaTaskset

__all__ = ["ChatHarness", "SpaEnv", "SpaTaskset"]

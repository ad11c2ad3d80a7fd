"""The package that the library verifiers imports to load spa's games: `vf-eval spa-verifiers`. The
code is in `spa_integrations.export.verifiers`."""

from spa_integrations.export.verifiers import ChatHarness, SpaEnv, SpaTaskset

__all__ = ["ChatHarness", "SpaEnv", "SpaTaskset"]

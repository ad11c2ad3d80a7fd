"""The name by which verifiers finds our games: `vf-eval spa-verifiers`. See spa.export.verifiers."""

from spa.export.verifiers import ChatHarness, SpaEnv, SpaTaskset

__all__ = ["ChatHarness", "SpaEnv", "SpaTaskset"]

"""Engines that do not use the trainer's own forward pass: vLLM, and models behind an API.

`pyproject.toml` registers each as an `EngineKind` in the group `spa.engines`.
"""

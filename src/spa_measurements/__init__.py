"""Measurements of `spa eval` besides success on puzzles: how accurate a world model is, and the
perplexity of states.

`pyproject.toml` registers their commands in the group `spa.measurements`.
"""

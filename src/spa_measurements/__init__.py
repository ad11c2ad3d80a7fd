"""Measurements that `spa eval` offers besides success on puzzles: the accuracy of a world model,
and the perplexity of states.

`pyproject.toml` registers their commands in the group `spa.measurements`.
"""

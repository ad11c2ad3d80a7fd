"""Estimate a run before it starts: memory per GPU, time and disk space.

`spa doctor --fit`, `spa run --dry-run` and the start message of a run load these functions from the
group `spa.estimates` in `pyproject.toml`.
"""

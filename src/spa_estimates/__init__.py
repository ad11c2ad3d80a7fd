"""Estimates of a run before it starts: memory of each GPU, hours, disk.

`spa doctor --fit`, `spa run --dry-run` and the start message of a run load them from the group
`spa.estimates` in `pyproject.toml`.
"""

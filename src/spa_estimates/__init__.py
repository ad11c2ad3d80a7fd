"""Estimates of a run before it starts: memory of each GPU, hours, disk.

`spa doctor --fit`, `spa run --dry-run` and the start message of a run find them in the group
`spa.estimates` of `pyproject.toml`.
"""

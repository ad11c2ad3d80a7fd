"""Exact solvers of the games, used for reference scores, tests, hints and expert play."""

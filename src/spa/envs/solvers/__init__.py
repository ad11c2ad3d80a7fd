"""Exact solvers, for cards, tests, hints and expert play."""

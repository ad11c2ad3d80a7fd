"""Exact solvers: for the cards, the tests, hints and expert play."""

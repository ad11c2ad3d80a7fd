"""Tabular Q-learning: a policy that first tries each puzzle, and a baseline without a language
model."""

"""Tabular Q-learning: a policy that explores each puzzle before playing it, and a baseline without
a language model."""

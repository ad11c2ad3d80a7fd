"""Tabular Q-learning: a policy that explores each puzzle before it plays, and a baseline without a
language model."""

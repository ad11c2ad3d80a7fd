"""Tabular Q-learning: a policy that tries each puzzle first, and a baseline without a language model."""

"""Baselines that know a board's rules, or learn from labels without a language model."""

"""Baselines without a language model that know a board's rules, or learn from labels."""

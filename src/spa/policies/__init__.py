"""Policies that see the environment: scripted, random, expert, tabular Q-learning, and mixtures of
them."""

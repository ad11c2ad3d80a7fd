"""Policies that see the environment: scripted, random, expert, and mixtures of them."""

"""Policies without a model, such as random play and solvers, and mixtures of policies."""

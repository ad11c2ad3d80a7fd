"""Rollouts: episodes are played turn by turn and recorded with their tokens."""

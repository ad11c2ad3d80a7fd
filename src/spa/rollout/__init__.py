"""Rollouts: play episodes turn by turn, and record their text and tokens."""

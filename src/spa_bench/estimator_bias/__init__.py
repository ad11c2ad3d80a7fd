"""Exact bias and variance of the advantage estimators, in worlds small enough to enumerate."""

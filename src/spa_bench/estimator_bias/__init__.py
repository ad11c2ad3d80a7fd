"""Exact bias and variance of advantage estimators, in worlds that are small enough to enumerate."""

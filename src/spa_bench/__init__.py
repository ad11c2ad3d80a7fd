"""Benchmarks of methods and what they need, beside `spa`, which imports none of it."""

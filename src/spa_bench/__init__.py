"""Benchmarks of methods and what they need. `spa` imports none of it."""

"""Benchmarks of methods and their tools. `spa` imports none of it."""

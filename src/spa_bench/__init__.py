"""Benchmarks of training methods and related tools. `spa` does not import this package."""

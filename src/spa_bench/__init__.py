"""Benchmarks of training methods, and tools for them. `spa` does not import this package."""

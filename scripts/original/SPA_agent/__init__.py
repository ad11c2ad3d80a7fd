"""The original's entry point for self-play data, in a package of its name."""

"""Pretraining of the bundled model."""

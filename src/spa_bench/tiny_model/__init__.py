"""The pretraining of the bundled model."""

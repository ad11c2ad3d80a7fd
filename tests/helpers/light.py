"""What must not be loaded by a start that needs none of it."""

HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "hydra",
    "omegaconf",
    "pyarrow",
    "rich",
    "gymnasium",
)

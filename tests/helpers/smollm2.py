"""The real model, where `make smollm2` has put it."""

import pytest

from spa.models.load import kept_model

needs_smollm2 = pytest.mark.skipif(
    not (kept_model("smollm2") / "config.json").is_file(),
    reason="SmolLM2 is not on this machine: make smollm2",
)

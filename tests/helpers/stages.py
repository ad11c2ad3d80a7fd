"""What stages have recorded and saved, and how it is held against another run's."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from spa.run.fingerprint import Fingerprint
from spa.run.manifest import Manifest


def mark_finished(
    folder: Path, fingerprint: Fingerprint | None = None, result: str | None = "."
) -> None:
    """Record a folder as that of a stage which took a second; not finished without a `result`."""
    known = fingerprint or Fingerprint(stage="sft", settings={}, content={})
    folder.mkdir(parents=True, exist_ok=True)
    Manifest(fingerprint=known, result=result, seconds=1.0).write(folder)


def metrics(folder: Path) -> list[dict[str, float]]:
    """What a stage has recorded, step by step."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Policy, critic, value head and optimizer states."""
    return {
        f"{path.relative_to(checkpoint)}/{name}": tensor
        for path in sorted(checkpoint.rglob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def assert_close(found: Path, expected: Path, *, last: int = 2) -> None:
    """Metrics, step by step, and the weights and optimizer states of the last step agree to 1e-5 in two stage folders."""
    for left, right in zip(metrics(found), metrics(expected), strict=True):
        assert left == pytest.approx(right, rel=1e-5, abs=1e-5)
        assert any(name.endswith("grad_norm") and value > 1e-3 for name, value in right.items())
    left, right = (weights(folder / f"global_step_{last}") for folder in (found, expected))
    assert left.keys() == right.keys()
    for name, tensor in right.items():
        torch.testing.assert_close(
            left[name], tensor, rtol=1e-5, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )

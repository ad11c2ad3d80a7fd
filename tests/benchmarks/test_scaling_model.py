"""The page prints what the time model gives, and the model's terms are those of the runs that they are fitted to."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    """Imports a script of benchmarks/."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def test_terms_are_fitted_to_one_process_and_predict_ranks(script):
    ranks, machine = script("ranks"), script("scaling_model").Machine()
    one_process = {
        n: {"rollout": 2 + n / 4, "score": n / 8, "update": 1 + n / 2} for n in (8, 4, 2)
    }
    model = ranks.fitted(one_process)
    assert {phase: pytest.approx(terms) for phase, terms in model.items()} == {
        "rollout": (2, 1 / 4),
        "score": (0, 1 / 8),
        "update": (1, 1 / 2),
    }
    assert ranks.predicted(model, 1) == pytest.approx(one_process[8])
    # a quarter of 32 episodes is packed, all are unpacked
    packing = 8 * machine.pack + 32 * machine.unpack
    assert ranks.predicted(model, 4) == pytest.approx(
        {"rollout": 2.5 + packing, "score": 0.25, "update": 2}
    )

"""Runs that the tests of this folder look at; made once."""

from pathlib import Path

import pytest
from report_fixtures import write_demo


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with one seed. Read only."""
    return write_demo(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture(scope="session")
def three_seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with three seeds. Read only."""
    return write_demo(tmp_path_factory.mktemp("runs") / "three", seeds=(1, 2, 3))

import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A deadline would be a time asserted on a shared machine, and so would the check for slow draws; derandomized draws make
# a failure repeatable.
settings.register_profile(
    "spa", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("spa")

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that: tests that interrupt a
# process would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Reports travel between processes as UTF-8: lone surrogates that a test has logged are escaped."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode("utf-8"))
        for name, text in report.sections
    ]
    return report


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 2 layers that writes the world-model format and plays at random."""
    from helpers.runs import make_base  # it loads everything, and most tests need none of it

    return make_base(tmp_path_factory.mktemp("models") / "base")

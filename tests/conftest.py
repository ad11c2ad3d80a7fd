import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A deadline would be a time asserted on a shared machine, and so would the check for slow draws; derandomised draws make
# a failure repeatable.
settings.register_profile("spa", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("spa")

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that: tests that interrupt a
# process would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Reports travel between processes as UTF-8: lone surrogates that a test has logged are escaped."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode("utf-8")) for name, text in report.sections
    ]
    return report

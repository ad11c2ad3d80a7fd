"""The conformance suite in a process of its own: a library that ends the process or hangs costs a check, and is told.

The process is forked, before anything heavy is imported, so that it starts at once.
"""

import json
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from spa.envs.checker import MADE, Checks, Finding, run_checks
from spa.envs.limits import boundary
from spa.errors import EnvFault, SpaError
from spa.signals import ignore_interrupts

ADVICE = "a run would end with it, unless es_manager.env_workers gives environments processes of their own"
CHECK_S = 240.0
"""How long one check may take."""


def run_apart(make: Callable[[], Any], checks: Checks) -> Iterator[Finding]:
    """The findings of `checks`, each as soon as it is there; after a check that ended the process or took longer than
    CHECK_S, those behind it are run in another one. Raises EnvFault with what `make` raises: then there is nothing to
    check."""
    left = dict(checks)
    while left:
        for finding in _in_child(make, dict(left)):
            del left[finding.check]
            yield finding
            if finding.check == MADE and not finding.ok:
                return


def _in_child(make: Callable[[], Any], checks: Checks) -> Iterator[Finding]:
    """Findings up to that of the check in which the process ended."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(ours, theirs, make, checks), daemon=True, name="spa-checks")
    process.start()
    theirs.close()
    try:
        for name in checks:
            if not ours.poll(CHECK_S):
                yield Finding(name, False, f"it took more than {CHECK_S:g} s", "a run would wait, or lose the turn")
                return
            try:
                told = json.loads(ours.recv_bytes())
            except EOFError:
                process.join()
                yield Finding(name, False, f"it ended the process: {_how(process.exitcode or 0)}", ADVICE)
                return
            if "fault" in told:
                raise EnvFault(told["fault"])
            yield Finding(**told)
    finally:
        process.kill()
        process.join()
        ours.close()


def _serve(ours: Connection, theirs: Connection, make: Callable[[], Any], checks: Checks) -> None:
    ours.close()
    ignore_interrupts()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with boundary("making it"):
            make()
    except (SpaError, EnvFault) as error:
        theirs.send_bytes(json.dumps({"fault": str(error)}).encode())
        return
    for finding in run_checks(checks):
        theirs.send_bytes(json.dumps(asdict(finding)).encode())


def _how(status: int) -> str:
    return f"exit status {status}" if status >= 0 else signal.strsignal(-status) or f"signal {-status}"

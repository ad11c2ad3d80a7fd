"""The loop that every side of a benchmark runs: one line in, one round of work, its times out. Standard library alone.

{"cpu": seconds of processor time, "wall": seconds, "peak_mb": most memory so far, ...what the work returns}
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping


def report(work: Callable[[], Mapping[str, float] | None]) -> None:
    """Do one round and write its times to standard output."""
    wall, cpu = time.perf_counter(), time.process_time()
    measured = work() or {}
    times = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.__stdout__.write(json.dumps({**times, "peak_mb": round(peak), **measured}) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def serve(work: Callable[[], Mapping[str, float] | None]) -> None:
    """Do a round for every line of standard input."""
    for _ in sys.stdin:
        report(work)

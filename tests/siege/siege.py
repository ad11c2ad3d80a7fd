"""Besiege a run with other people's code and bad luck, and hold what comes out against one that nothing happened to.

    python tests/siege/siege.py                          everything: `make test-extra NAME=siege`
    python tests/siege/siege.py --only config --cases 40
    python tests/siege/siege.py --only environments --faults raise exit

One invariant. A fault that loses no episode changes no byte of the result. One that loses some ends as a run in which the
same episodes are declared lost. Everything else is one message, without a traceback, and an exit status that is not 0.
Nothing hangs. Prints its seed, its counts and what broke the invariant; exit status 1 if anything did.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bad_luck import clocks, damage, processes
from configurations import config
from invariant import TESTS, Siege
from others_code import IN_PROCESS, IN_WORKERS, TEMPLATES, environments, servers, templates

PARTS: dict[str, Callable[[Siege, argparse.Namespace], None]] = {
    "config": lambda siege, args: config(siege, args.cases),
    "environments": lambda siege, args: environments(siege, args.faults),
    "templates": lambda siege, args: templates(siege, args.templates),
    "damage": lambda siege, args: damage(siege, args.files),
    "processes": lambda siege, args: processes(siege, args.suspensions),
    "clocks": lambda siege, args: clocks(siege),
    "servers": lambda siege, args: servers(siege),
}


def report(siege: Siege, left: list[str], root: Path, started: float) -> None:
    """Print and write what was counted and found, and which parts are not done."""
    found = {"seed": siege.seed, "counts": siege.counts, "broken": siege.broken, "not done": left}
    (root / "report.json").write_text(json.dumps(found, indent=1))
    lines = [
        f"{part}: {number} {outcome}"
        for part, seen in siege.counts.items()
        for outcome, number in seen.items()
    ]
    verdict = (
        f"{len(siege.broken)} cases BROKE the invariant"
        if siege.broken
        else "Every case kept the invariant"
    )
    cut = f"; NOT DONE, or not to its end: {', '.join(left)}" if left else ""
    used = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = sum(part.ru_utime + part.ru_stime for part in used)
    last = f"{verdict}{cut} (seed {siege.seed}, {time.monotonic() - started:.0f} s, {cpu:.0f} s of processors)."
    sys.stdout.write("\n".join([*lines, *siege.broken, last, ""]))


def main() -> int:
    """Every part; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--cases", type=int, default=2000, help="configurations")
    parser.add_argument(
        "--faults", nargs="*", default=[*IN_PROCESS, *IN_WORKERS], help="of environments"
    )
    parser.add_argument("--templates", nargs="*", default=[*TEMPLATES], help="chat templates")
    parser.add_argument("--files", type=int, default=1000, help="cases of damage, at most")
    parser.add_argument("--suspensions", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/siege"))
    args = parser.parse_args()
    root = args.folder.resolve()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(TESTS / "envs"), os.environ.get("PYTHONPATH", "")]
    )
    import spa.recipes.pipeline  # noqa: F401 - imported once for all launches

    siege, started, done = Siege(root, args.seed), time.monotonic(), list[str]()
    # one that takes too long says what it has found by then
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for part in args.only:
            PARTS[part](siege, args)
            done.append(part)
    finally:
        report(siege, [part for part in args.only if part not in done], root, started)
    return 1 if siege.broken else 0


if __name__ == "__main__":
    raise SystemExit(main())

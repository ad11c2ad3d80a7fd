"""Write requirements-hashed.txt: the tested versions of what `spa-agent[dev]` needs, each with the hashes of its files.

    python tests/docs/hashes.py        needs uv, and a .venv in which `make test` works

The versions are those of constraints-cpu.txt. torch is left out: every index has builds of its own.
"""

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PINS, HASHED = ROOT / "constraints-cpu.txt", ROOT / "requirements-hashed.txt"
OWN_INDEX = {"torch"}
HEAD = """\
# Made by tests/docs/hashes.py from constraints-cpu.txt: what spa-agent[dev] needs beside torch. `make hashed` installs it:
#   pip install --require-hashes --no-deps -r requirements-hashed.txt
#   pip install --no-deps torch==2.13.0                                     whose builds differ by index
#   pip install --no-deps --no-build-isolation -e .
"""


def needed(package: str, extras: set[str]) -> set[str]:
    """Names of everything that an installed package with these extras needs, itself left out."""
    found: set[str] = set()
    todo = [(package, frozenset(extras))]
    done = set(todo)
    while todo:
        name, wanted = todo.pop()
        for line in metadata.requires(name) or ():
            asked = Requirement(line)
            if asked.marker is None or any(
                asked.marker.evaluate({"extra": extra}) for extra in ("", *wanted)
            ):
                found.add(canonicalize_name(asked.name))
                new = {(asked.name, frozenset(asked.extras))} - done
                done |= new
                todo += new
    return found - {package}


def pins() -> dict[str, str]:
    """Versions by canonical name."""
    lines = (
        line
        for line in PINS.read_text(encoding="utf-8").splitlines()
        if "==" in line and line[0] != "#"
    )
    return {
        canonicalize_name(name): version for name, version in (line.split("==") for line in lines)
    }


def main() -> int:
    """Ask the index for the hashes; returns the exit status."""
    known = pins()
    wanted = sorted(name for name in needed("spa-agent", {"dev"}) - OWN_INDEX if name in known)
    lines = "\n".join(f"{name}=={known[name]}" for name in wanted)
    command = [
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--no-deps",
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
        "-",
    ]
    made = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if made.returncode:
        sys.stderr.write(made.stderr)
        return 1
    HASHED.write_text(HEAD + made.stdout, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""How many digits two runs of one seed have in common: `same_digits.py RUN_A RUN_B` prints JSON.

For every metric of SFT and PPO: the first step in which the runs differ, and the number of equal significant digits in
the last step of both. Times are left out.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any


def metrics(file: Path) -> dict[int, dict[str, float]]:
    """The numbers of each step of a `metrics.jsonl`, without times."""
    found: dict[int, dict[str, float]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        numbers = {
            name: float(value)
            for name, value in entry.items()
            if isinstance(value, int | float) and "time" not in name and "per_s" not in name
        }
        found.setdefault(int(entry.get("step", 0)), {}).update(numbers)
    return found


def digits(a: float, b: float) -> float:
    """Equal significant digits of two numbers; 17 if they are equal."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 17.0
    return max(0.0, -math.log10(abs(a - b) / max(abs(a), abs(b))))


def compare(one: Path, other: Path) -> dict[str, Any]:
    """Per metric: the first different step (None if there is none), and digits at the last."""
    a, b = metrics(one), metrics(other)
    steps = sorted(a.keys() & b.keys())
    names = sorted({name for step in steps for name in a[step].keys() & b[step].keys()})
    result = {}
    for name in names:
        pairs = [
            (step, a[step][name], b[step][name])
            for step in steps
            if name in a[step] and name in b[step]
        ]
        first = next((step for step, x, y in pairs if digits(x, y) < 17), None)
        result[name] = {
            "first_difference": first,
            "digits_at_end": round(digits(*pairs[-1][1:]), 1),
        }
    return result


if __name__ == "__main__":
    runs = [Path(name) for name in sys.argv[1:3]]
    files = sorted(file.relative_to(runs[0]) for file in runs[0].rglob("metrics.jsonl"))
    found = {
        str(file): compare(runs[0] / file, runs[1] / file)
        for file in files
        if (runs[1] / file).is_file()
    }
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
